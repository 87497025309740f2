import os
import subprocess
import sys
import time

import pytest

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._shutdown import Deadline, process_age, read_deadline
from lightning_sm.errors import JobConfigError


@pytest.mark.parametrize(
    ("seconds", "save_seconds", "margin"), [(100, 0, 5), (86_400, 0, 120), (86_400, 30, 180), (100, 10, 25)]
)
def test_the_margin_leaves_room_for_a_checkpoint_and_the_model(seconds, save_seconds, margin):
    assert Deadline(seconds, started=0).margin(save_seconds) == margin


def test_it_is_near_as_soon_as_the_margin_begins():
    now = [0.0]
    deadline = Deadline(1000, started=0, clock=lambda: now[0])
    seen = {}
    for now[0] in (0, 949, 950, 2000):
        seen[now[0]] = deadline.is_near(0)
    assert seen == {0: False, 949: False, 950: True, 2000: True}
    now[0] = 900
    assert deadline.is_near(25)
    assert not deadline.is_near(24)


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc")
def test_time_counts_from_the_start_of_the_process():
    code = (
        "import time; time.sleep(1); from lightning_sm._shutdown import read_deadline;"
        "from lightning_sm._sagemaker.job import TrainingJob;"
        "d = read_deadline('60', TrainingJob()); print(time.monotonic() - d.started)"
    )
    began = time.monotonic()
    told = float(subprocess.check_output([sys.executable, "-c", code], text=True))
    assert 1 <= told <= time.monotonic() - began + 0.1


def test_in_a_container_time_counts_from_its_first_process(monkeypatch):
    asked = []
    monkeypatch.setattr("lightning_sm._shutdown.process_age", lambda process: asked.append(process) or 5.0)
    monkeypatch.delenv("SAGEMAKER_BASE_DIR", raising=False)
    deadline = read_deadline("1h", TrainingJob(in_container=True))
    assert deadline.seconds == 3600
    assert deadline.clock() - deadline.started >= 5
    read_deadline("1h", TrainingJob())
    # In a moved base directory process 1 is the machine's.
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", "/tmp/opt/ml")
    read_deadline("1h", TrainingJob(in_container=True))
    assert asked == [1, os.getpid(), os.getpid()]


def test_a_process_that_is_not_there():
    assert process_age(2**22 + 1) == 0.0


@pytest.mark.parametrize("text", ["soon", "0", "-5"])
def test_what_is_no_duration(text):
    with pytest.raises(JobConfigError, match="HINT: Write a number of seconds"):
        read_deadline(text, TrainingJob())
