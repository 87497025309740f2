"""Programs with Fabric as jobs of real processes: plain Fabric's weights, restarts, failures, ``fabric run``."""

import importlib.util
import shutil

import pytest

from tests.fabric.conftest import NAMESPACES, job
from tests.helpers.processes import free_port

pytestmark = pytest.mark.full


def fabric_run(started):
    """``fabric run`` on each of two hosts of a job."""
    if importlib.util.find_spec("click") is None:
        pytest.skip("click is not installed")
    words = ["-m", f"{NAMESPACES[-1]}.cli", "--num-nodes", "2", "--accelerator", "cpu", "--main-address", "127.0.0.1"]
    words += ["--main-port", str(free_port()), "--node-rank"]
    return started._finish([([*words, str(rank)], host) for rank, host in enumerate(started._hosts(2))])


@pytest.mark.parametrize(
    ("start", "words", "nodes", "namespace"),
    [
        (lambda job: job.torchrun(1, 2), (), 1, NAMESPACES[-1]),
        (lambda job: job.torchrun(2, 1), (), 2, NAMESPACES[0]),
        (lambda job: job.one_per_host(2), ("--devices", 1), 2, NAMESPACES[0]),
        (fabric_run, ("--how", "command"), 2, NAMESPACES[-1]),
        # By the job's variable.
        (lambda job: job.torchrun(2, 1), ("--how", "unchanged"), 2, NAMESPACES[-1]),
    ],
    ids=["torchrun", "torchrun_two_hosts", "one_process_on_two_hosts", "fabric_run", "unchanged"],
)
def test_weights_are_those_of_plain_fabric(tmp_path, plain, start, words, nodes, namespace):
    started = start(job(tmp_path, *words, namespace=namespace, LIGHTNING_SM_AUTO=int("unchanged" in words)))
    for rank, seen in enumerate(started.results(2)):
        assert seen["weights"] == plain
        assert seen["world"] == [2, nodes, rank if nodes == 2 else 0]
        assert seen["strategy"] == "SMDDPStrategy"
        assert seen["resumed"] == [None, 0]
        own = tmp_path / f"algo-{rank + 1 if nodes == 2 else 1}"
        assert seen["logger"] == str(own / "output" / "data")
    assert ("fabric.num_nodes" in started.output) == (start is not fabric_run)
    assert "SMDDPStrategy: backend gloo, because" in started.output


@pytest.mark.parametrize("name", ["step-{}.ckpt", "last.ckpt"])
def test_a_restart_goes_on_from_the_latest_checkpoint_on_all_hosts(tmp_path, plain, name):
    variables = {"TRAINING_JOB_NAME": "job-1"}
    stopped = job(tmp_path, "--name", name, STOP_BEFORE=4, **variables).torchrun(2, 1)
    assert 0 not in stopped.codes
    saved = tmp_path / "algo-1" / "output" / "data" / "checkpoints"
    latest = saved / name.format(3)
    if name != "last.ckpt":  # killed while it wrote another file
        shutil.copy(latest, saved / "step-9.ckpt")
        latest.write_bytes(latest.read_bytes()[:-10])
        latest = saved / name.format(2)
    for config in tmp_path.glob("algo-*/input"):
        shutil.rmtree(config)
    restarted = job(tmp_path, "--name", name, **variables).torchrun(2, 1)
    first, second = restarted.results(2)
    assert first["weights"] == second["weights"] == plain
    assert first["resumed"] == [str(latest), 4 if name == "last.ckpt" else 3]
    assert second["resumed"][0] == str(latest).replace("algo-1", "algo-2")
    assert ("Skipped step-3.ckpt in" in restarted.output) == (name != "last.ckpt")
    assert not list(tmp_path.rglob(".*partial*"))


def test_a_failing_rank_is_the_reason_on_all_hosts_and_ends_all(tmp_path):
    failed = job(tmp_path, "--fail", 2).torchrun(2, 1)
    assert not {0, None} & set(failed.codes)
    files = list(tmp_path.glob("algo-*/output/failure"))
    assert len(files) == len(failed.codes)
    for file in files:
        assert "ValueError: no step 2 on rank 1" in file.read_text()
    assert not list(tmp_path.glob("rank-*.json"))
