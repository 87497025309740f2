"""Plays one fault and judges how the job went on."""

import contextlib
import random
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Optional

from tests.faults.damage import damage_newest, whole_checkpoints
from tests.faults.job import TOTAL_STEPS, Job
from tests.faults.plan import Fault

__all__ = ["SAVE_EVERY", "Verdict", "can_mount", "play", "reference"]

#: Seconds between two checkpoints by time. Those at the end of each epoch come on top.
SAVE_EVERY = 0.3

# A save's own time, and a machine that is busy with other things.
_SLACK = 1.5

# An end must come within this time of its cause, without anybody's help.
_BOUND = 60.0


@dataclass(frozen=True)
class Verdict:
    """What became of one fault.

    Args:
        fault: The fault.
        problem: What went wrong, or ``None``.
        lost_steps: Steps that were trained again, after the worst interruption.
        lost_seconds: The time that these had taken.
        reason: The failure reason of the interrupted attempt, where it could leave one.
    """

    fault: Fault
    problem: Optional[str] = None
    lost_steps: int = 0
    lost_seconds: float = 0.0
    reason: Optional[str] = None


def reference(hosts, processes):
    """The weights of a run that nothing interrupts."""
    with tempfile.TemporaryDirectory(prefix="lightning-sm-faults-") as folder:
        job = Job(folder, hosts, processes, {"save_every": f"{SAVE_EVERY}s"}).start()
        codes = job.wait(180)
        job.end()
        if any(codes):
            raise RuntimeError(f"the reference run ended with {codes}\n{job.output[-3000:]}")
        return job.result["weights"]


def can_mount():
    """Whether this process may mount a file system."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", folder]
        try:
            mounted = subprocess.run(command, capture_output=True, check=False).returncode == 0
        except OSError:
            return False
        if mounted:
            subprocess.run(["umount", folder], check=True)
        return mounted


def play(fault, expected):
    """Play one fault: interrupt, damage, restart, and compare the end with ``expected``."""
    options = {"save_every": f"{SAVE_EVERY}s", "async_save": fault.background}
    with tempfile.TemporaryDirectory(prefix="lightning-sm-faults-") as folder, contextlib.ExitStack() as stack:
        job = Job(folder, fault.hosts, fault.processes, options)
        stack.callback(job.end)
        if fault.kill in ("full disk", "read-only directory"):
            stack.enter_context(_small_disk(job.checkpoints()))
        try:
            return _judge(fault, job, expected)
        except (AssertionError, TimeoutError, FileNotFoundError) as error:
            return Verdict(fault, problem=f"{type(error).__name__}: {error}\n{job.output[-3000:]}")


def _judge(fault, job, expected):
    chance = random.Random(fault.seed)
    lost_steps, lost_seconds, reason = 0, 0.0, None
    job.start()
    for number, moment in enumerate(fault.moments):
        assert job.wait_for_step(max(1, int(moment * TOTAL_STEPS))), "it ended before anything happened to it"
        _interrupt(fault, job)
        reason = job.failure("algo-1") or reason
        done, began = job.steps(), job.began
        job.end()
        damaged = _restore(job, fault.damage if number == 0 else "none", chance)
        newest = _newest_common(job)
        job.start()
        assert job.wait_for_step(newest + 1), "it ended before its first step"
        resumed = min(job.steps()) - 1
        assert resumed == newest, f"it went on from step {resumed}, and the newest whole checkpoint is of {newest}"
        seconds = done[max(done)] - done.get(newest, began)
        allowed = (1 if damaged is None else 2) * SAVE_EVERY + _SLACK
        assert seconds <= allowed, f"{max(done) - newest} steps of {seconds:.1f} s were lost"
        lost_steps, lost_seconds = max(lost_steps, max(done) - newest), max(lost_seconds, seconds)
    codes = job.wait(180)
    assert codes == [0] * fault.hosts, f"exit codes {codes} at the end"
    assert job.result["steps"] == TOTAL_STEPS, f"it ended after {job.result['steps']} steps"
    assert job.result["weights"] == expected, "the weights differ from those of a run without interruption"
    return Verdict(fault, None, lost_steps, lost_seconds, reason)


def _interrupt(fault, job):
    """Bring the trouble about, and see that every host that is left ends by itself, and not as if all were well."""
    if fault.kill == "job":
        job.end()
        return
    with contextlib.ExitStack() as stack:
        if fault.kill == "rank":
            job.kill_rank(fault.victim)
        elif fault.kill == "host":
            job.kill_host(fault.victim % fault.hosts)
        elif fault.kill == "full disk":
            stack.enter_context(_no_room(job.checkpoints()))
        else:
            stack.enter_context(_read_only(job.checkpoints()))
        codes = job.wait(_BOUND)
    assert None not in codes, f"{_BOUND:.0f} s after '{fault.kill}' the hosts' exit codes are {codes}"
    assert all(codes), f"exit codes {codes} after '{fault.kill}'"


def _restore(job, kind, chance):
    """Bring the uploaded checkpoints to all hosts, and damage the newest; return its name if there was one."""
    job.sync()
    if kind == "half-synced":
        return damage_newest(job.checkpoints(job.names[-1]), kind, chance)
    damaged = damage_newest(job.checkpoints(), kind, chance)
    job.sync()
    return damaged


def _newest_common(job):
    """The step of the newest checkpoint that is whole and the same on every host; 0 where there is none."""
    first, *others = [whole_checkpoints(job.checkpoints(name)) for name in job.names]
    return max((step for name, step in first.items() if all(name in other for other in others)), default=0)


@contextlib.contextmanager
def _small_disk(folder):
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(folder)], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


@contextlib.contextmanager
def _no_room(folder):
    filler = folder / "filler"
    with contextlib.suppress(OSError), open(filler, "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    try:
        yield
    finally:
        filler.unlink()


@contextlib.contextmanager
def _read_only(folder):
    _remount(folder, "ro")
    try:
        yield
    finally:
        _remount(folder, "rw")


def _remount(folder, mode):
    for _ in range(100):
        # While a file is open for writing the kernel refuses.
        done = subprocess.run(["mount", "-o", f"remount,{mode}", str(folder)], capture_output=True, check=False)
        if done.returncode == 0:
            return
        time.sleep(0.01)
    raise OSError(f"{folder} could not be mounted {mode}: {done.stderr.decode()}")
