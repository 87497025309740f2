import os
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest

from lightning_sm import _shutdown
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._shutdown import Deadline, have_equal_batches, read_deadline


@pytest.mark.parametrize(
    ("seconds", "save_seconds", "margin"), [(100, 0, 5), (86_400, 0, 120), (86_400, 30, 180), (100, 10, 25)]
)
def test_a_deadline_is_near_when_there_is_room_for_a_checkpoint_and_the_model_only(seconds, save_seconds, margin):
    for left, is_near in ((margin + 1, False), (margin, True), (-1, True)):
        deadline = Deadline(seconds, started=5, clock=lambda left=left: 5 + seconds - left)
        assert deadline.is_near(save_seconds) is is_near


@pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="there is no /proc")
def test_outside_a_container_time_counts_from_the_start_of_the_process():
    code = (
        "import time; time.sleep(1); from lightning_sm._shutdown import read_deadline;"
        "from lightning_sm._sagemaker.job import TrainingJob;"
        "d = read_deadline('60', TrainingJob()); print(time.monotonic() - d.started)"
    )
    began = time.monotonic()
    told = float(subprocess.check_output([sys.executable, "-c", code], text=True))
    assert 1 <= told <= time.monotonic() - began + 0.1


def test_in_a_container_time_counts_from_the_start_of_process_1(monkeypatch):
    asked = []
    monkeypatch.setattr("lightning_sm._shutdown.process_age", lambda process: asked.append(process) or 5.0)
    monkeypatch.delenv("SAGEMAKER_BASE_DIR", raising=False)
    deadline = read_deadline("1h", TrainingJob(in_container=True))
    assert deadline.seconds == 3600
    assert deadline.clock() - deadline.started >= 5
    read_deadline("1h", TrainingJob())
    # With another base directory, process 1 is the machine's.
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", "/tmp/opt/ml")
    read_deadline("1h", TrainingJob(in_container=True))
    assert asked == [1, os.getpid(), os.getpid()]


def test_infinite_or_unequal_numbers_of_batches(monkeypatch):
    monkeypatch.setattr(_shutdown, "broadcast", lambda _, value: [4.0, 5.0])
    monkeypatch.setattr(_shutdown, "all_true", lambda _, flag: flag)
    many = SimpleNamespace(world_size=2)
    assert have_equal_batches(many, [4, 5])
    assert not have_equal_batches(many, [4, 6])
    monkeypatch.setattr(_shutdown, "broadcast", lambda _, value: value)
    assert not have_equal_batches(many, [float("inf")])
    assert have_equal_batches(SimpleNamespace(world_size=1), [float("inf")])


_CHILDREN = """
import copy, os, signal, sys, time
from types import SimpleNamespace
from lightning_sm._shutdown import SigtermHandler
connector = SimpleNamespace(_signal_connector=SimpleNamespace(_original_handlers={}))
first = SigtermHandler()
first.install(exits_at_once=False)
first.restore(connector)
stop = copy.deepcopy(first)
stop.install(exits_at_once=True)
early = os.fork() or time.sleep(60) or os._exit(0)
stop.install(exits_at_once=False)
late = os.fork() or time.sleep(60) or os._exit(0)
time.sleep(0.5)
os.killpg(0, signal.SIGTERM)
time.sleep(0.5)
alive = [os.waitpid(child, os.WNOHANG)[0] == 0 for child in (early, late)]
for child in (early, late):
    os.kill(child, signal.SIGTERM)
ended = [os.WTERMSIG(os.waitpid(child, 0)[1]) for child in (early, late)]
stop.restore(connector)
plain = os.fork() or os._exit(os.getpgid(0) != os.getpgid(os.getppid()))
print(stop.received, alive, ended, os.WEXITSTATUS(os.waitpid(plain, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there is no fork")
def test_forked_children_survive_a_signal_to_the_process_group_and_can_be_terminated():
    done = subprocess.run([sys.executable, "-c", _CHILDREN], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert done.stdout == "True [True, True] [15, 15] 0\n"
