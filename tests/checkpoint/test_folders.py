"""Sharded checkpoints on one host: folders as torch's DCP and DeepSpeed write them, whole, damaged and mixed up."""

import pickle
import shutil
from types import SimpleNamespace

import pytest
import torch

from lightning_sm._checkpoint.candidates import list_candidates
from lightning_sm._checkpoint.folders import ShardedFolder, code_in_folder, has_manifest
from lightning_sm._checkpoint.integrity import CorruptedError
from lightning_sm._checkpoint.manifest import MANIFEST, Manifest, ShardFile, file_crc32
from lightning_sm._checkpoint.resume import _merge_hosts, describe_world_change
from lightning_sm._lightning.loadable import load_problem

dcp = pytest.importorskip("torch.distributed.checkpoint", reason="torch before 1.12 has no DCP")

_CONTENTS = {"epoch": 1, "global_step": 8, "pytorch-lightning_version": "2.6.0", "callbacks": {}}
_RANK_1 = "checkpoint/zero_pp_rank_1_mp_rank_00_optim_states.pt"


def deepspeed_folder(path, stage=2, world=2):
    """The files of a DeepSpeed engine with what is read of them."""
    (path / "checkpoint").mkdir(parents=True)
    (path / "latest").write_text("checkpoint")
    config = {"zero_optimization": {"stage": stage}}
    contents = {**_CONTENTS, "dp_world_size": world, "mp_world_size": 1, "ds_config": config, "module": {}}
    for rank in range(world):
        torch.save({"optimizer_state_dict": {"step": torch.arange(99.0)}}, path / _RANK_1.replace("1", str(rank), 1))
        if stage == 3:
            torch.save(contents, path / "checkpoint" / f"zero_pp_rank_{rank}_mp_rank_00_model_states.pt")
    if stage < 3:
        torch.save(contents, path / "checkpoint" / "mp_rank_00_model_states.pt")
    return path


def add_manifest(path, format="deepspeed", world=2, save_id="one"):
    paths = {str(each.relative_to(path)): each for each in path.rglob("*") if each.is_file()}
    files = (ShardFile(name, file.stat().st_size, file_crc32(file)) for name, file in sorted(paths.items()))
    Manifest(format, world, save_id, tuple(files)).write(str(path))
    return path


def only(folder):
    (candidate,) = list_candidates(str(folder.parent))
    return candidate


@pytest.mark.parametrize("stage", [1, 2, 3])
@pytest.mark.parametrize("with_manifest", [False, True])
def test_what_is_said_of_a_folder_of_deepspeed(tmp_path, stage, with_manifest):
    folder = deepspeed_folder(tmp_path / "a.ckpt", stage)
    if with_manifest:
        add_manifest(folder)
    found = only(folder)
    assert (found.problem, found.epoch, found.global_step, found.is_folder) == (None, 1, 8, True)
    assert (found.saved_by, found.world_size, found.save_id) == (
        f"deepspeed_stage_{stage}", 2, "one" if with_manifest else None
    )  # fmt: skip
    assert has_manifest(str(folder)) is with_manifest
    if not with_manifest:
        assert found.digest(str(tmp_path), check=True) == found.digest(str(tmp_path), check=False)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda path: (path / "latest").unlink(), "it is incomplete: latest is missing"),
        (lambda path: (path / _RANK_1).unlink(), "it is incomplete: the optim states of rank 1 of 2 are missing"),
        (
            lambda path: shutil.copy(path / _RANK_1, path / _RANK_1.replace("1", "2", 1)),
            "it holds the optim states of rank 2, but was saved by 2 ranks",
        ),
        (
            lambda path: (path / "checkpoint" / "mp_rank_00_model_states.pt").unlink(),
            "it is incomplete: checkpoint/mp_rank_00_model_states.pt is missing",
        ),
    ],
)
def test_a_folder_of_plain_deepspeed_that_is_not_whole(tmp_path, change, reason):
    folder = deepspeed_folder(tmp_path / "a.ckpt")
    change(folder)
    assert only(folder).problem == reason


def test_a_damaged_file_of_plain_deepspeed_is_found_when_it_is_read(tmp_path):
    folder = deepspeed_folder(tmp_path / "a.ckpt")
    content = bytearray((folder / _RANK_1).read_bytes())
    content[len(content) // 2] ^= 16
    (folder / _RANK_1).write_bytes(content)
    assert only(folder).problem is None
    with pytest.raises(CorruptedError, match=f"its {_RANK_1}: "):
        only(folder).digest(str(tmp_path), check=True)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (
            lambda path: (path / _RANK_1).unlink(),
            f"it is incomplete: 1 of 4 files of its manifest is missing ({_RANK_1})",
        ),
        (
            lambda path: (path / _RANK_1).write_bytes(b""),
            f"it is truncated, or of another save: {_RANK_1} has another size than in its {MANIFEST}",
        ),
        (
            lambda path: shutil.copy(path / _RANK_1, path / _RANK_1.replace("1", "2", 1)),
            f"it holds {_RANK_1.replace('1', '2', 1)}, which its manifest does not name",
        ),
    ],
)
def test_a_folder_with_a_manifest_that_is_not_whole(tmp_path, change, reason):
    folder = add_manifest(deepspeed_folder(tmp_path / "a.ckpt"))
    change(folder)
    assert only(folder).problem == reason


def test_hosts_are_whole_together(tmp_path):
    parts = []
    for host, gone in (("one", _RANK_1), ("two", "latest")):
        folder = add_manifest(deepspeed_folder(tmp_path / host / "a.ckpt"))
        (folder / gone).unlink()
        parts.append(only(folder))
    assert [part.problem is None for part in parts] == [False, False]
    (whole,) = _merge_hosts(parts)
    assert (whole.problem, whole.global_step, whole.missing) == (None, 8, ())
    (lacking,) = _merge_hosts([parts[0], parts[0]])
    assert lacking.problem == f"it is incomplete: no host has {_RANK_1} of its manifest"


def dcp_folder(path, **more):
    path.mkdir(parents=True)
    weights = {"state_dict.weight": torch.arange(4.0), **more}
    dcp.save(weights, storage_writer=dcp.FileSystemWriter(str(path)), no_dist=True)
    torch.save(_CONTENTS, path / "meta.pt")
    return path


class Named:
    """An object of a project."""


@pytest.mark.skipif(not hasattr(dcp, "save"), reason="torch before 2.2 saves otherwise")
def test_a_folder_of_dcp_names_no_code_but_torchs(tmp_path):
    plain = ShardedFolder.read(str(dcp_folder(tmp_path / "a.ckpt", lr=0.1)))
    assert (plain.format, plain.saved_by({}), plain.world_size({})) == ("dcp", "fsdp2", 1)
    assert code_in_folder(plain) is None
    with_object = ShardedFolder.read(str(dcp_folder(tmp_path / "b.ckpt", named=Named())))
    assert "DCP loads an entry of __0_0.distcp with weights_only=False" in code_in_folder(with_object)
    with open(tmp_path / "a.ckpt" / ".metadata", "wb") as index:
        pickle.dump(Named(), index)
    assert f"it names {Named.__module__}.Named" in code_in_folder(plain)


def trainer(name, world_size=2, **attributes):
    strategy = type(name, (), attributes)()
    return SimpleNamespace(strategy=strategy, world_size=world_size)


@pytest.mark.parametrize("name", ["DDPStrategy", "FSDPStrategy", "ModelParallelStrategy", "DeepSpeedStrategy"])
@pytest.mark.parametrize("saved_by", ["", "fsdp", "fsdp2", "deepspeed_stage_2"])
def test_which_strategy_loads_what(name, saved_by):
    """As a run of each of them under Lightning 2.6 with each of these checkpoints has shown."""
    loads = {
        "DDPStrategy": [""],
        "FSDPStrategy": ["", "fsdp"],
        "ModelParallelStrategy": ["", "fsdp2"],
        "DeepSpeedStrategy": ["deepspeed_stage_2"],
    }
    config = {"config": {"zero_optimization": {"stage": 2}}}
    assert (load_problem(trainer(name, **config), saved_by, 2) is None) is (saved_by in loads[name])


def test_the_world_size_of_deepspeed_is_fixed_but_for_universal_checkpoints():
    zero = {"zero_optimization": {"stage": 1}}
    assert load_problem(trainer("DeepSpeedStrategy", config=zero), "deepspeed_stage_2", 2) is None
    problem, hint = load_problem(trainer("DeepSpeedStrategy", config=zero), "deepspeed_stage_2", 4)
    assert "saved by 4 processes, this job has 2" in problem
    assert hint.startswith("Resume with 4 processes")
    universal = {**zero, "checkpoint": {"load_universal": True}}
    assert load_problem(trainer("DeepSpeedStrategy", config=universal), "deepspeed_stage_2", 4) is None
    full = trainer("DeepSpeedStrategy", config=zero, load_full_weights=True, zero_stage_3=True)
    assert load_problem(full, "", None) is None


def test_what_another_world_size_changes(tmp_path):
    found = only(add_manifest(deepspeed_folder(tmp_path / "a.ckpt")))
    assert describe_world_change(found, 2) is None
    assert "a.ckpt was saved by 2 processes, and this job has 3. Its shards" in describe_world_change(found, 3)
    assert "each step takes 3/2 of the samples" in describe_world_change(found, 3)
