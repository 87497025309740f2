"""The doctor in containers of SageMaker's own toolkits."""

import shutil
from pathlib import Path

import pytest

from tests.helpers.processes import extended
from tests.helpers.rehearsal import needs
from tests.toolkits.running import fill_source, rehearse

pytestmark = [pytest.mark.rehearsal, pytest.mark.processes]

_HERE = Path(__file__).parent
_LAUNCHES = {
    "none": ("--distribution", "none"),
    "torchrun": ("--distribution", "torch_distributed"),
    "mpi": ("--distribution", "mpi"),
}


def rehearsed(folder, launch, *words):
    source = fill_source(folder / "source")
    shutil.copy(_HERE / "train.py", source / "train.py")
    data = folder / "data"
    data.mkdir()
    for name in ("b.txt", "a.txt"):
        (data / name).write_text(name)
    options = ("--hosts", 2, *_LAUNCHES[launch], "--channel", f"training={data}", "--abort-after", "60s")
    return rehearse(source, folder / "out", *options, "train.py", *words)


def hosts(done):
    return {each["host"]: each for each in done.summary["attempts"][-1]["hosts"]}


@needs("netns", torch=True, mpi=True)
@pytest.mark.parametrize("launch", [extended("none"), extended("torchrun"), "mpi"])
def test_a_good_job_has_no_errors_and_trains(tmp_path, launch):
    done = rehearsed(tmp_path, launch)
    assert done.exit_code == 0, done.log[-6000:]
    for host in ("algo-1", "algo-2"):
        (line,) = [line for line in done.log.splitlines() if f"Doctor on {host}: " in line and " checks, " in line]
        assert line.endswith("no errors."), done.log[-6000:]


@needs("netns", torch=True, mpi=True)
@pytest.mark.parametrize("launch", [extended("none"), "torchrun", extended("mpi")])
def test_an_error_on_one_host_is_the_reason_on_every_host(tmp_path, launch):
    done = rehearsed(tmp_path, launch, "--trap", "algo-2")
    assert done.exit_code == 1, done.log[-6000:]
    for host, ended in hosts(done).items():
        if launch == "mpi" and host == "algo-1":
            continue  # mpirun may end rank 0 as soon as rank 1 has left; the toolkit then writes its own text there
        start = "DoctorError: The doctor found an error on algo-2: directories: The model directory "
        assert ended["failure"].startswith(start), (host, done.log[-6000:])
    assert "algo-1 examined" in done.log
    assert "algo-2 examined" not in done.log
