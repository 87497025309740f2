import os
import signal
import subprocess
import sys
from types import SimpleNamespace

import pytest

from lightning_sm._sagemaker.exit_codes import STOPPED
from lightning_sm._shutdown import SigtermHandler

# Before it is in place, Lightning's own handling has nothing to put back.
_TRAINER = SimpleNamespace(_signal_connector=SimpleNamespace(_original_handlers={}))


@pytest.fixture
def stop():
    before = signal.getsignal(signal.SIGTERM)
    made = SigtermHandler()
    made.prepare()
    yield made
    made.restore(_TRAINER)
    assert signal.getsignal(signal.SIGTERM) == before


def test_a_signal_is_noted(stop):
    stop.install(exits_at_once=False)
    assert not stop.received
    os.kill(os.getpid(), signal.SIGTERM)
    assert stop.received


def test_a_signal_can_end_the_program_at_once(stop):
    stop.install(exits_at_once=True)
    with pytest.raises(SystemExit) as left:
        os.kill(os.getpid(), signal.SIGTERM)
    assert left.value.code == STOPPED == 143
    stop.install(exits_at_once=False)
    os.kill(os.getpid(), signal.SIGTERM)


_CHILDREN = """
import os, signal, sys, time
from types import SimpleNamespace
from lightning_sm._shutdown import SigtermHandler
stop = SigtermHandler()
stop.prepare()
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
stop.restore(SimpleNamespace(_signal_connector=SimpleNamespace(_original_handlers={})))
plain = os.fork() or os._exit(os.getpgid(0) != os.getpgid(os.getppid()))
print(stop.received, alive, ended, os.WEXITSTATUS(os.waitpid(plain, 0)[1]))
"""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="there is no fork")
def test_forked_children_outlive_a_signal_to_the_group_and_can_still_be_ended():
    done = subprocess.run([sys.executable, "-c", _CHILDREN], stdout=subprocess.PIPE, text=True, start_new_session=True)
    assert done.stdout == "True [True, True] [15, 15] 0\n"


def test_it_is_heard_until_the_release_when_lightning_puts_handlers_back(stop):
    own = signal.getsignal(signal.SIGTERM)
    connector = SimpleNamespace(_original_handlers={signal.SIGTERM: own})
    stop.install(exits_at_once=False)
    stop.keep_installed(SimpleNamespace(_signal_connector=connector))
    assert connector._original_handlers[signal.SIGTERM] == signal.getsignal(signal.SIGTERM) != own
    stop.restore(SimpleNamespace(_signal_connector=connector))
    assert connector._original_handlers[signal.SIGTERM] == signal.getsignal(signal.SIGTERM) == own
