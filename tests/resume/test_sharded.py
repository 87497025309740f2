import re
import shutil

import pytest
import torch

from lightning_sm._checkpoint.candidates import list_candidates
from lightning_sm._checkpoint.contents import DamagedError, why_not_weights_only

dcp = pytest.importorskip("torch.distributed.checkpoint")
if not hasattr(dcp, "save"):
    pytest.skip("torch before 2.2 cannot save a sharded checkpoint in one process", allow_module_level=True)


@pytest.fixture
def folder(tmp_path):
    """What Lightning's sharded strategies write."""
    path = tmp_path / "epoch=0-step=8.ckpt"
    dcp.save({"model": {"weight": torch.arange(4000.0)}, "count": 3}, checkpoint_id=str(path))
    torch.save({"epoch": 0, "pytorch-lightning_version": "2.0.0", "global_step": 8, "loops": {}}, path / "meta.pt")
    return path


def problem(folder):
    (candidate,) = list_candidates(str(folder.parent))
    if candidate.problem is not None:
        return candidate.problem
    try:
        candidate.digest(str(folder.parent), check=True)
    except DamagedError as error:
        return str(error)
    return None


def flip(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 16
    path.write_bytes(content)


def test_a_complete_one(folder):
    (candidate,) = list_candidates(str(folder.parent))
    assert (candidate.name, candidate.epoch, candidate.global_step) == ("epoch=0-step=8.ckpt", 0, 8)
    assert candidate.is_folder
    assert candidate.size == sum(path.stat().st_size for path in folder.iterdir())
    assert problem(folder) is None
    digest = candidate.digest(str(folder.parent), check=True)
    assert candidate.digest(str(folder.parent), check=False) == digest
    (folder / "more.txt").write_text("x")
    assert candidate.digest(str(folder.parent), check=False) != digest
    assert why_not_weights_only(str(folder / "meta.pt")) is None or torch.__version__.startswith("1.")


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda folder: (folder / "meta.pt").unlink(), r"meta\.pt is missing"),
        (lambda folder: (folder / ".metadata").unlink(), r"\.metadata is missing"),
        (lambda folder: (folder / "__0_0.distcp").unlink(), r"__0_0\.distcp is missing"),
        (lambda folder: (folder / "__0_0.distcp").write_bytes(b""), r"__0_0\.distcp is truncated"),
        (lambda folder: flip(folder / "__0_0.distcp"), r"__0_0\.distcp"),
        (lambda folder: (folder / "meta.pt").write_bytes(b""), "it is empty"),
        (lambda folder: (folder / ".metadata").write_bytes(b"\x80"), "its contents cannot be read"),
        (lambda folder: shutil.copy(folder / "meta.pt", folder / ".metadata"), "names no shard|cannot be read"),
    ],
)
def test_what_is_missing_or_damaged_is_named(folder, change, reason):
    change(folder)
    assert problem(folder) is not None
    assert re.search(reason, problem(folder))
