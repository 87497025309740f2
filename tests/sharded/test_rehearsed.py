"""Two hosts in SageMaker's toolkit: each uploads its own shards, and the restarted job goes on from all of them."""

import io
import json
import shutil
import tarfile

import pytest
import torch

from tests.helpers.processes import ROOT
from tests.helpers.rehearsal import command_line, needs, run_rehearsal

pytestmark = pytest.mark.full

_TESTS = ROOT / "tests"
# An epoch of eight samples for each of two hosts, in batches of two.
_STEPS = 4


@pytest.fixture
def run(tmp_path):
    """Return a function that plays the job once, with the checkpoints that earlier ones have left."""
    source = tmp_path / "source"
    # The program and the parts of these tests that it needs.
    (source / "tests" / "helpers").mkdir(parents=True)
    shutil.copy(_TESTS / "sharded" / "train_rehearsed.py", source)
    for name in (
        "__init__.py",
        "helpers/__init__.py",
        "helpers/accelerator.py",
        "helpers/sharded.py",
        "helpers/tiny.py",
    ):
        shutil.copy(_TESTS / name, source / "tests" / name)

    def play(*words, exit_code=0):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        folders = ("--checkpoint-dir", tmp_path / "bucket", "--output-dir", tmp_path / "out")
        job = ("--hosts", 2, "--distribution", "torch_distributed", "--job-name", "sharded-job", "--isolation", "netns")
        return run_rehearsal(command_line(source, *job, *folders, "--json", *words), exit_code=exit_code, timeout=280)

    return play


def _packed(archive, name):
    with tarfile.open(archive) as packed:
        return packed.extractfile(name).read()


@needs("netns", torch=True)
def test_a_restarted_job_resumes_from_the_shards_of_both_hosts(run, tmp_path):
    pytest.importorskip("deepspeed")
    kinds = ("deepspeed_3", "fsdp2")
    last = kinds[-1]
    # The first attempt ends amid the last kind's training; the other has done half of its. The restart has the
    # same arguments, as SageMaker's have, and another limit of epochs.
    stopping = ("--stop-at", f"{last} has done step {_STEPS + 1}", "--stop-grace", "1s")
    words = ("train_rehearsed.py", "--kinds", ",".join((*kinds, "ddp")), "--waiting", last)
    run(*stopping, "--env", "EPOCHS=2", *words, exit_code=143)
    for kind in kinds:
        # The oldest, whose save nothing cut off.
        saved = min((tmp_path / "bucket" / kind).glob("*/fit-0/step-*.ckpt"))
        files = {file["name"] for file in json.loads((saved / "manifest.json").read_text())["files"]}
        here = {str(path.relative_to(saved)) for path in saved.rglob("*") if path.is_file()}
        assert here == {*files, "manifest.json"}, f"{kind}: both hosts have uploaded theirs"
        ranks = {name for name in files if any(mark in name for mark in ("__1_0", "rank_1_"))}
        assert ranks, f"{kind}: the second host writes shards of its own"
    done = run("--env", "EPOCHS=4", *words)
    assert "Skipped" not in done.log
    for rank in (0, 1):
        found = json.loads(_packed(tmp_path / "out" / "output.tar.gz", f"rank-{rank}.json"))
        starts = {kind: found[kind]["start"] for kind in (*kinds, "ddp")}
        assert starts.pop("ddp") == 0
        # Of the last kind the newest save may have been cut off.
        assert 0 < starts.pop(last) < 2 * _STEPS
        assert set(starts.values()) == {2 * _STEPS}
        assert {each["steps"] for each in found.values()} == {4 * _STEPS}
    weights = {
        kind: torch.load(io.BytesIO(_packed(tmp_path / "out" / "model.tar.gz", f"{kind}/model.pt")), weights_only=True)
        for kind in (*kinds, "ddp")
    }
    for kind in kinds:
        assert weights[kind].keys() == weights["ddp"].keys()
        for name, value in weights["ddp"].items():
            assert torch.allclose(weights[kind][name], value, rtol=0, atol=1e-6), (kind, name)
