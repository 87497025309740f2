import json
from dataclasses import asdict

import pytest
import torch

from lightning_sm._export.sharded import folder_problem, read_folder
from lightning_sm._resume.record import MANIFEST, CheckpointRecord, SavedFile
from lightning_sm.errors import ExportError

dcp = pytest.importorskip("torch.distributed.checkpoint")
if not hasattr(dcp, "save"):
    pytest.skip("this torch has no dcp.save, which came with 2.2", allow_module_level=True)


@pytest.fixture
def folder(tmp_path):
    """As Lightning writes FSDP2's, by one process."""
    path = tmp_path / "best.ckpt"
    dcp.save({"state_dict": {"weight": torch.arange(12.0).reshape(4, 3)}}, checkpoint_id=path)
    torch.save({"epoch": 2}, path / "meta.pt")
    return path


def test_a_shard_of_another_host_from_an_older_save_is_named(folder):
    """After a restart a host has the older shards of the others, which have the same sizes."""
    (shard,) = folder.glob("*.distcp")
    files = (SavedFile.read(str(folder), shard.name),)
    record = CheckpointRecord("best.ckpt", 0, 1, 0, "", 2, "fsdp2", "0123456789abcdef", files=files)
    (folder / MANIFEST).write_text(json.dumps(asdict(record)))
    assert folder_problem(str(folder)) is None
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert folder_problem(str(folder)) == f"its {shard.name} is corrupted, or of another save (CRC-32 mismatch)"


def test_missing_and_truncated_shards_are_named(folder):
    (shard,) = folder.glob("*.distcp")
    shard.write_bytes(shard.read_bytes()[:100])
    with pytest.raises(ExportError, match=r"cannot be consolidated .* HINT: Set sagemaker.export_weights to last"):
        read_folder(str(folder), {"weight": torch.zeros(4, 3)})
    shard.unlink()
    assert folder_problem(str(folder)) == "it is incomplete: __0_0.distcp is missing"
    (folder / ".metadata").write_bytes(b"damaged")
    assert folder_problem(str(folder)).startswith("its .metadata cannot be read (")
