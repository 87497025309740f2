import json
import os
import pickle
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._export import find_best
from lightning_sm._export.consolidated import folder_problem, read_folder
from lightning_sm._resume.record import MANIFEST, CheckpointRecord, SavedFile
from lightning_sm.errors import ExportError

dcp = pytest.importorskip("torch.distributed.checkpoint")
if not hasattr(dcp, "save"):
    pytest.skip("this torch has no dcp.save, which came with 2.2", allow_module_level=True)


class Runs:
    """Makes a file when it is unpickled."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mknod, (self.path,)


@pytest.fixture
def folder(tmp_path):
    """As Lightning writes FSDP2's, by one process."""
    path = tmp_path / "best.ckpt"
    state = {
        "weight": torch.arange(12.0).reshape(4, 3),
        "steps": torch.tensor(3),
        "part._extra_state": {"notes": ["a"]},
    }
    optimizer = {"state": {"weight": {"step": torch.tensor(1.0)}}}
    dcp.save({"state_dict": state, "optimizer_0": optimizer}, checkpoint_id=path, no_dist=True)
    torch.save({"epoch": 2, "hyper_parameters": {"width": 7}}, path / "meta.pt")
    return path


def write_record(folder, file):
    record = CheckpointRecord("best.ckpt", 0, 1, 0, "", 2, "fsdp2", "0123456789abcdef", files=(file,))
    (folder / MANIFEST).write_text(json.dumps(record.to_json()))


def read(folder, weights_only=True):
    return read_folder(str(folder), weights_only=weights_only, frozen={}, whole_numbers={})


def test_model_and_what_lightning_saves_beside_it(folder):
    assert folder_problem(str(folder)) is None
    found = read(folder)
    assert found["state_dict"].pop("weight").tolist() == torch.arange(12.0).reshape(4, 3).tolist()
    assert found["state_dict"].pop("steps").item() == 3
    assert found["state_dict"] == {"part._extra_state": {"notes": ["a"]}}
    assert (found["epoch"], found["hyper_parameters"]) == (2, {"width": 7})
    assert set(found) == {"state_dict", "epoch", "hyper_parameters"}


def test_a_shard_of_another_host_from_an_older_save_is_named(folder):
    """After a restart a host has the older shards of the others, which have the same sizes."""
    (shard,) = folder.glob("*.distcp")
    listed = SavedFile.read(str(folder), shard.name)
    write_record(folder, listed)
    assert folder_problem(str(folder)) is None
    content = bytearray(shard.read_bytes())
    content[len(content) // 2] ^= 1
    shard.write_bytes(content)
    assert folder_problem(str(folder)) == f"its {shard.name} is corrupted, or of another save (CRC-32 mismatch)"


def test_missing_and_truncated_shards_are_named(folder):
    (shard,) = folder.glob("*.distcp")
    content = shard.read_bytes()
    shard.write_bytes(content[:100])
    assert "__0_0.distcp" in folder_problem(str(folder))
    shard.unlink()
    assert "__0_0.distcp" in folder_problem(str(folder))
    with pytest.raises(ExportError, match="cannot be consolidated"):
        read(folder)


def test_a_shard_of_another_host_is_missing_and_the_last_weights_are_exported(folder, caplog):
    write_record(folder, SavedFile("__1_0.distcp", 10, 1))
    callback = SimpleNamespace(best_model_path=str(folder), best_model_score=0.5, monitor="val_loss")
    trainer = SimpleNamespace(checkpoint_callbacks=[callback], num_nodes=1)
    assert find_best(trainer) is None
    assert caplog.messages[-1].endswith("__1_0.distcp is missing; exporting the last weights instead")
    trainer.num_nodes = 2
    assert find_best(trainer) is None
    assert "exporting the last weights instead. HINT: each of several hosts" in caplog.messages[-1]
    os.remove(folder / MANIFEST)
    assert find_best(trainer).path == str(folder)


def test_a_folder_that_is_no_checkpoint(tmp_path):
    assert folder_problem(str(tmp_path)) == "it is a folder of an unknown format"


def test_no_code_of_the_index_is_run(folder):
    made = folder.parent / "made"
    (folder / ".metadata").write_bytes(pickle.dumps(Runs(str(made))))
    assert folder_problem(str(folder)) == "its .metadata has an unknown format"
    with pytest.raises(ExportError):
        read(folder, weights_only=False)
    assert not made.exists()


def test_code_of_extra_state_is_run_only_if_that_is_allowed(tmp_path):
    path, made = tmp_path / "best.ckpt", tmp_path / "made"
    dcp.save({"state_dict": {"_extra_state": Runs(str(made))}}, checkpoint_id=path, no_dist=True)
    with pytest.raises(ExportError, match="weights_only=True"):
        read(path)
    assert not made.exists()
    read(path, weights_only=False)
    assert made.exists()


def test_deepspeeds_folder_needs_code(tmp_path):
    (tmp_path / "latest").write_text("checkpoint")
    with pytest.raises(ExportError, match="DeepSpeed"):
        read(tmp_path)
