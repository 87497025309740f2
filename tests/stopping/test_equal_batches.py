from types import SimpleNamespace

from lightning_sm import _shutdown
from lightning_sm._shutdown import have_equal_batches


def test_validations_without_end_or_of_unequal_length(monkeypatch):
    monkeypatch.setattr(_shutdown, "broadcast", lambda _, value: [4.0, 5.0])
    monkeypatch.setattr(_shutdown, "all_true", lambda _, flag: flag)
    many = SimpleNamespace(world_size=2)
    assert have_equal_batches(many, [4, 5])
    assert not have_equal_batches(many, [4, 6])
    monkeypatch.setattr(_shutdown, "broadcast", lambda _, value: value)
    assert not have_equal_batches(many, [float("inf")])
    assert have_equal_batches(SimpleNamespace(world_size=1), [float("inf")])
