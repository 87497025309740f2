"""SageMaker's managed tiered checkpointing: its library, and the local server that its source distribution carries."""

import os
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.helpers.processes import Job, extended, free_port

pytestmark = pytest.mark.sharded

pytest.importorskip("amzn_sagemaker_checkpointing", reason="amzn-sagemaker-checkpointing is not installed")
_SOURCE = os.environ.get("LIGHTNING_SM_TIERED_SOURCE", "")
if not Path(_SOURCE, "tests", "local_tests", "membrain_server.py").is_file():
    pytest.skip("LIGHTNING_SM_TIERED_SOURCE names no source distribution of the library", allow_module_level=True)

_SCRIPT = Path(__file__).parent / "train_tiered.py"
_SERVER = "import sys, uvicorn; from membrain_server import app; uvicorn.run(app, port=int(sys.argv[1]))"


@pytest.fixture(scope="module")
def port():
    number = free_port()
    folder = Path(_SOURCE, "tests", "local_tests")
    with subprocess.Popen(
        [sys.executable, "-c", _SERVER, str(number)], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.STDOUT
    ) as process:
        try:
            _wait_for(f"http://127.0.0.1:{number}/health")
            yield number
        finally:
            process.kill()


def _wait_for(url):
    deadline = time.monotonic() + 60
    while True:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            assert time.monotonic() < deadline, f"{url} does not answer"
            time.sleep(0.2)


def _train(folder, kind, port, *, name, stop_at=0, of="training"):
    """A start of the job ``of``, with the checkpoint directory of all its starts."""
    script = (_SCRIPT, folder / "checkpoints", kind, port, stop_at, f"{of}-{kind}")
    return Job(folder / name, *script, TRAINING_JOB_NAME=f"{folder.name}-{of}").torchrun(1, 2)


@pytest.mark.parametrize("kind", [extended("fsdp"), "fsdp2"])
def test_a_job_resumes_from_memory_where_that_is_newer_than_its_directory(tmp_path, port, kind):
    stopped = _train(tmp_path, kind, port, name="first", stop_at=5)
    assert stopped.codes == [0], stopped.output[-3000:]
    names = [path.name for path in Path(tmp_path, "checkpoints").iterdir() if path.suffix == ".ckpt"]
    assert names == ["epoch=0-step=3.ckpt"]

    found = _train(tmp_path, kind, port, name="second").results(2)
    assert [Path(each["resumed_from"]).name for each in found] == ["memory-tier-step=4.ckpt"] * 2
    assert not any(Path(each["resumed_from"]).exists() for each in found), "what was fetched is removed"

    whole = _train(tmp_path / "whole", kind, port, name="only", of="whole").results(2)
    assert [each["resumed_from"] for each in whole] == [None, None]
    assert [each["steps"] for each in found] == [each["steps"] for each in whole] == [8, 8]
    assert [each["sums"] for each in found] == [each["sums"] for each in whole]


def test_without_its_service_the_training_goes_on_and_uses_the_directory(tmp_path):
    nobody = free_port()
    first = _train(tmp_path, "fsdp2", nobody, name="first", stop_at=5)
    assert first.codes == [0], first.output[-3000:]
    assert "Step 1 was not saved in the memory tier training-fsdp2-2 (SageMakerInMemoryTierError: " in first.output
    assert "; there will be no further saves there." in first.output
    assert "Step 4 was not saved" not in first.output

    second = _train(tmp_path, "fsdp2", nobody, name="second")
    assert [each["resumed_from"] for each in second.results(2)] == ["epoch=0-step=3.ckpt"] * 2
    assert "Failed to fetch latest checkpoints" in second.output


def test_checkpoints_of_another_job_are_not_taken(tmp_path, port):
    _train(tmp_path / "one", "fsdp2", port, name="only", stop_at=3, of="shared")
    another = _train(tmp_path / "two", "fsdp2", port, name="only", of="shared")
    assert [each["resumed_from"] for each in another.results(2)] == [None, None]
    assert "Rejected step 2 of the memory tier: it was written by the job one-shared" in another.output
