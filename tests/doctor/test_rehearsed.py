"""The doctor in containers of SageMaker's own toolkits."""

import shutil
from pathlib import Path

import pytest

from tests.helpers.rehearsal import needs
from tests.toolkits.running import fill_source, rehearse

pytestmark = pytest.mark.full

_HERE = Path(__file__).parent


@needs("netns", torch=True, mpi=True)
def test_a_good_job_has_no_errors_and_trains(tmp_path):
    source = fill_source(tmp_path / "source")
    shutil.copy(_HERE / "train.py", source / "train.py")
    data = tmp_path / "data"
    data.mkdir()
    for name in ("b.txt", "a.txt"):
        (data / name).write_text(name)
    options = ("--hosts", 2, "--distribution", "mpi", "--channel", f"training={data}", "--abort-after", "60s")
    done = rehearse(source, tmp_path / "out", *options, "train.py")
    for host in ("algo-1", "algo-2"):
        (line,) = [line for line in done.log.splitlines() if f"Doctor on {host}: " in line and " checks, " in line]
        assert line.endswith("no errors."), done.log[-6000:]
