"""The doctor in containers of SageMaker's own toolkits."""

import shutil
from pathlib import Path

import pytest

from tests.helpers.rehearsal import needs
from tests.toolkits.running import fill_source, rehearse

pytestmark = pytest.mark.full

_HERE = Path(__file__).parent


def rehearsed(folder, distribution, *words):
    source = fill_source(folder / "source")
    shutil.copy(_HERE / "train.py", source / "train.py")
    data = folder / "data"
    data.mkdir()
    for name in ("b.txt", "a.txt"):
        (data / name).write_text(name)
    options = ("--hosts", 2, "--distribution", distribution, "--channel", f"training={data}", "--abort-after", "60s")
    return rehearse(source, folder / "out", *options, "train.py", *words)


@needs("netns", torch=True, mpi=True)
def test_a_good_job_has_no_errors_and_trains(tmp_path):
    done = rehearsed(tmp_path, "mpi")
    assert done.exit_code == 0, done.log[-6000:]
    for host in ("algo-1", "algo-2"):
        (line,) = [line for line in done.log.splitlines() if f"Doctor on {host}: " in line and " checks, " in line]
        assert line.endswith("no errors."), done.log[-6000:]
