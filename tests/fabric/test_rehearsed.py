"""Two hosts in SageMaker's toolkit: plain Fabric's weights, also after a restart that finds its checkpoints in S3."""

import json
import shutil
import tarfile

import pytest

from tests.fabric.conftest import NAMESPACES, SCRIPT
from tests.helpers.processes import ROOT
from tests.helpers.rehearsal import command_line, needs, run_rehearsal

pytestmark = [pytest.mark.full, needs("netns", torch=True)]


@pytest.fixture
def run(tmp_path):
    """Return a function that plays the job once, and returns what each rank wrote."""
    source = tmp_path / "source"
    (source / "tests" / "helpers").mkdir(parents=True)
    shutil.copy(SCRIPT, source)
    for name in ("__init__.py", "helpers/__init__.py", "helpers/plain.py", "helpers/tiny.py"):
        shutil.copy(ROOT / "tests" / name, source / "tests" / name)

    def play():
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        options = ["--hosts", 2, "--distribution", "torch_distributed", "--job-name", "fabric-job", "--json"]
        options += ["--isolation", "netns", "--checkpoint-dir", tmp_path / "bucket", "--output-dir", tmp_path / "out"]
        done = run_rehearsal(command_line(source, *options, "train.py", "--namespace", NAMESPACES[-1]), timeout=280)
        assert done.exit_code == 0, done.log[-4000:]
        with tarfile.open(tmp_path / "out" / "output.tar.gz") as packed:
            return [json.load(packed.extractfile(f"rank-{rank}.json")) for rank in range(2)]

    return play


def test_two_hosts_have_plain_fabrics_weights_and_go_on_from_s3(tmp_path, run, plain):
    for rank, seen in enumerate(run()):
        assert seen["weights"] == plain
        assert seen["world"] == [2, 2, rank]
        assert seen["resumed"] == [None, 0]
    for step in (4, 5):
        (tmp_path / "bucket" / f"step-{step}.ckpt").unlink()
    for seen in run():
        assert seen["weights"] == plain
        assert seen["resumed"] == ["/opt/ml/checkpoints/step-3.ckpt", 4]
