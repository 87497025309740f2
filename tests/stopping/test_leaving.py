from types import SimpleNamespace

from lightning_sm import _shutdown
from lightning_sm._shutdown import may_leave_anywhere


def test_validations_without_end_or_of_unequal_length(monkeypatch):
    monkeypatch.setattr(_shutdown, "broadcast", lambda _, value: [4.0, 5.0])
    monkeypatch.setattr(_shutdown, "all_true", lambda _, flag: flag)
    many = SimpleNamespace(world_size=2)
    assert may_leave_anywhere(many, [4, 5])
    assert not may_leave_anywhere(many, [4, 6])
    monkeypatch.setattr(_shutdown, "broadcast", lambda _, value: value)
    assert not may_leave_anywhere(many, [float("inf")])
    assert may_leave_anywhere(SimpleNamespace(world_size=1), [float("inf")])
