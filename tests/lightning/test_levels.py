import pytest

from lightning_sm._lightning import Namespace, SupportLevel, describe_level, installed_namespaces, support_level
from lightning_sm._lightning.levels import VERIFIED
from tests.helpers.skips import installed_version


@pytest.mark.parametrize(
    ("version", "level", "said"),
    [
        ((1, 5), SupportLevel.CORE, ["level core", "begins again"]),
        ((1, 8), SupportLevel.CORE, ["level core", "not verified with pytorch_lightning 1.8"]),
        ((1, 9), SupportLevel.CORE, ["level core", "no progress lines"]),
        ((2, 0), SupportLevel.CORE, ["level core", "not verified with pytorch_lightning 2.0"]),
        ((2, 1), SupportLevel.EPOCH, ["level epoch", "begins again"]),
        ((2, 4), SupportLevel.EPOCH, ["level epoch"]),
        ((2, 5), SupportLevel.FULL, []),
        ((2, 6), SupportLevel.FULL, []),
        ((2, 7), SupportLevel.FULL, ["not verified with pytorch_lightning 2.7"]),
    ],
)
def test_a_version_has_a_level_and_one_line_says_what_it_lacks(monkeypatch, version, level, said):
    monkeypatch.setattr(Namespace, "version", version)
    namespace = Namespace("pytorch_lightning")
    line = describe_level(namespace)
    assert support_level(namespace) is level
    assert all(part in (line or "") for part in said)
    assert bool(line) == bool(said)
    assert ("not verified" in (line or "")) == any("not verified" in part for part in said)


def test_the_installed_version_is_a_verified_one():
    assert installed_version("pytorch-lightning") in {lightning for lightning, _ in VERIFIED}
    assert {namespace.version for namespace in installed_namespaces()} == {installed_version("pytorch-lightning")}
