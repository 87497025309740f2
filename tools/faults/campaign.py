"""Plays one fault and judges how the job went on."""

import contextlib
import random
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Optional

from tools.faults.damage import damage_newest, files_in_part, whole_checkpoints
from tools.faults.job import Job
from tools.faults.plan import KNOWN, Fault

__all__ = ["DIFFERS", "SAVE_EVERY", "Reference", "Verdict", "can_mount", "play", "reference"]

#: Begins the problem of a run that ended, but with other values.
DIFFERS = "other than without interruption"
#: Seconds between two checkpoints by time. Those at the end of each epoch come on top.
SAVE_EVERY = 0.2

# A save's own time, and a machine that is busy with other things.
_SLACK = 2.0

# An end must come within this time of its cause, without anybody's help.
_BOUND = 60.0

_ON_DISK = ("full disk", "read-only directory")


@dataclass(frozen=True)
class Reference:
    """What a run that nothing interrupts ends with.

    Args:
        result: Steps, weights, exported model.
        metrics: Each value that was logged.
        counts: How often each kind of event was told.
    """

    result: dict
    metrics: frozenset
    counts: dict


@dataclass(frozen=True)
class Verdict:
    """What became of one fault.

    Args:
        fault: The fault.
        problem: What went wrong, or ``None``.
        times: How often the job was interrupted; one that ended before its moment was not.
        lost_steps: Steps that were trained again, after the worst interruption.
        lost_seconds: The time that these had taken.
    """

    fault: Fault
    problem: Optional[str] = None
    times: int = 0
    lost_steps: int = 0
    lost_seconds: float = 0.0


def reference(server, setup, hosts, processes, strategy=""):
    """Run a set-up in a world without interruption."""
    with tempfile.TemporaryDirectory(prefix="lightning-sm-faults-") as folder:
        options = {"save_every": f"{SAVE_EVERY}s"}
        job = Job(server, folder, setup, hosts, processes, options, strategy=strategy).start()
        codes = job.wait(180)
        job.end()
        if set(codes) != {0}:
            raise RuntimeError(f"the reference run of {setup} ended with {codes}\n{job.output[-3000:]}")
        kinds = [kind for line in job.told() for kind in line]
        return Reference(job.result, frozenset(job.metrics()), {kind: kinds.count(kind) for kind in set(kinds)})


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


def play(server, fault, expected):
    """Play one fault: interrupt, damage, restart, and compare the end with ``expected``."""
    options = {"save_every": f"{SAVE_EVERY}s", "async_save": fault.background}
    with tempfile.TemporaryDirectory(prefix="lightning-sm-faults-") as folder, contextlib.ExitStack() as stack:
        job = Job(server, folder, fault.setup, fault.hosts, fault.processes, options, fault.ballast, fault.strategy)
        stack.callback(job.end)
        if fault.kill in _ON_DISK:
            stack.enter_context(_small_disk(job.checkpoints()))
        try:
            return _judge(fault, job, expected)
        except (AssertionError, TimeoutError, FileNotFoundError) as error:
            return Verdict(fault, f"{type(error).__name__}: {error}\n{job.output[-3000:]}", max(0, job.attempt - 1))


def _judge(fault, job, expected):
    chance = random.Random(fault.seed)
    times, lost_steps, lost_seconds, damaged, resumptions, in_part = 0, 0, 0.0, None, set(), set()
    job.start()
    for number, moment in enumerate(fault.moments):
        if _wait_for(moment, job, expected):
            times += 1
            time.sleep(moment.delay)
            _interrupt(fault, moment, job)
        else:
            codes = job.wait(_BOUND)
            assert set(codes) == {0}, f"exit codes {codes} without an interruption"
        told = job.told()
        job.end()
        broken = _in_part(job) - in_part - {damaged}
        assert not broken, f"{sorted(broken)} stand there in part"
        damaged = _restore(job, fault.damage if number == 0 else "none", chance)
        in_part = _in_part(job) if fault.in_folders else set()
        # The main host sends what another lacks of a sharded checkpoint.
        sent = fault.in_folders
        newest, without_manifest = (_newest_common(job, sent=sent, without_manifest=each) for each in (False, True))
        job.start()
        resumed = _first_step(job)
        if resumed in (None, without_manifest):
            # That a checkpoint without its manifest is whole, its other files may tell.
            newest = without_manifest
        resumptions.add(newest)
        if resumed is None:
            # An epoch whose data cannot be found again is trained from its beginning, so that such a run ends later.
            least = expected.result["steps"]
            done = newest >= least if fault.setup in KNOWN else newest == least
            assert done, f"nothing was trained from step {newest} on"
            continue
        assert resumed == newest, f"it went on from step {resumed}, and the newest whole checkpoint is of {newest}"
        steps, seconds = _lost(told, newest)
        allowed = (1 if damaged is None else 2) * SAVE_EVERY + _SLACK
        assert seconds <= allowed, f"{steps} steps of {seconds:.1f} s were lost"
        lost_steps, lost_seconds = max(lost_steps, steps), max(lost_seconds, seconds)
    codes = job.wait(180)
    assert set(codes) == {0}, f"exit codes {codes} at the end"
    differences = _differences(fault, job, expected, resumptions)
    assert not differences, f"{DIFFERS}: {'; '.join(differences)}"
    return Verdict(fault, None, times, lost_steps, lost_seconds)


def _wait_for(moment, job, expected):
    """Wait for a moment; return whether it came before the end of the job."""
    if moment.where in ("export", "gap"):
        count = 1 + int(moment.share * expected.counts[moment.where])
        return job.wait_for(lambda told: sum(moment.where in line for line in told) >= count)
    where = moment.where if moment.where in expected.counts else "step"
    step = max(1, int(moment.share * expected.result["steps"]))
    return job.wait_for(lambda told: any(where in line and line["at"] >= step for line in told))


def _interrupt(fault, moment, job):
    """Bring the trouble about, and see that every process that is left ends by itself, and not as if all were well."""
    if fault.kill == "job":
        job.end()
        return
    allowed = None
    with contextlib.ExitStack() as stack:
        if fault.kill == "SIGTERM":
            job.signal(signal.SIGTERM)
            # What comes after the training may be over already. A rank that leaves later than others gets it again.
            allowed = {143, -signal.SIGTERM} if moment.where not in ("export", "gap") else {143, 0, -signal.SIGTERM}
        elif fault.kill == "rank":
            job.signal(signal.SIGKILL, [fault.victim])
        elif fault.kill == "host":
            job.kill_host(fault.victim)
        else:
            stack.enter_context((_no_room if fault.kill == "full disk" else _read_only)(job.checkpoints()))
        codes = job.wait(_BOUND)
    assert None not in codes, f"{_BOUND:.0f} s after '{fault.kill}' the exit codes are {codes}"
    has_ended = codes[0] == 0 and max(job.steps(), default=0) == job.result["steps"]
    if allowed is not None:
        assert set(codes) <= allowed or has_ended, f"exit codes {codes} after SIGTERM"
        done, newest = max(job.steps(), default=0), _newest_common(job, alone=True)
        assert newest >= done or 143 not in codes, f"it stopped after step {done}, and the newest is of {newest}"
    elif moment.where not in ("export", "gap"):
        assert all(codes) or has_ended, f"exit codes {codes} after '{fault.kill}'"


def _in_part(job):
    """The names of what stands there in part on some host."""
    whole = job.base is None
    return {path.name for name in job.names for path in files_in_part(job.folder / name, of_all_hosts=whole)}


def _restore(job, kind, chance):
    """Bring the uploaded checkpoints to all hosts, and damage the newest; return its name if there was one."""
    if job.base is not None:
        job.upload(chance.sample(job.names, len(job.names)))
        damaged = None if kind == "half-synced" else damage_newest(job.prefix, kind, chance)
        job.download()
        return damage_newest(job.checkpoints(job.names[-1]), kind, chance) if kind == "half-synced" else damaged
    job.sync()
    if kind == "half-synced":
        return damage_newest(job.checkpoints(job.names[-1]), kind, chance)
    damaged = damage_newest(job.checkpoints(), kind, chance)
    job.sync()
    return damaged


def _newest_common(job, *, alone=False, sent=False, without_manifest=False):
    """The step of the newest checkpoint that is whole and the same on every host; 0 where there is none.

    Args:
        job: The job.
        alone: Whether what the main host has counts, or what all have uploaded where each writes its own shards.
        sent: Whether what the main host has is enough.
        without_manifest: Whether sharded checkpoints that have lost their manifests count.
    """
    folders = [job.checkpoints(name) for name in (job.names[:1] if alone or sent else job.names)]
    if alone and job.base is not None:
        job.upload(job.names)
        folders = [job.prefix]
    first, *others = [whole_checkpoints(folder, without_manifest=without_manifest) for folder in folders]
    return max((step for name, step in first.items() if all(name in other for other in others)), default=0)


def _first_step(job):
    """The step from which rank zero goes on; ``None`` where it trains no further."""
    job.wait_for(lambda told: any("step" in line for line in told))
    return next((line["start"] for line in job.told() if line.get("rank") == 0), None)


def _lost(told, newest):
    """The steps, and the seconds of training, from the newest checkpoint to the end of an attempt."""
    times = {}
    for line in told:
        if "step" in line:
            times.setdefault(line["step"], line["time"])
    if not times or max(times) <= newest:
        return 0, 0.0
    began = min(line["time"] for line in told if "rank" in line)
    return max(times) - newest, times[max(times)] - times.get(newest, began)


def _differences(fault, job, expected, resumptions):
    """In what the end of a job differs from that of a run without interruption."""
    ends = job.result
    found = [f"{what} {ends[what]}, not {value}" for what, value in expected.result.items() if ends[what] != value]
    logged = job.metrics()
    wrong, missing = sorted(logged - expected.metrics), sorted(expected.metrics - logged)
    # Lightning logs a step, and an epoch, after the hook in which it is saved: a job that ends there never does. A job
    # that is asked to stop does so before the epoch's end.
    stopped = fault.kill == "SIGTERM"
    missing = [
        value for value in missing if value[0] + 1 not in resumptions or (stopped and value[1].endswith("_epoch"))
    ]
    found += [f"{len(wrong)} logged values such as {wrong[:3]}"] if wrong else []
    found += [f"{len(missing)} values were not logged, such as {missing[:3]}"] if missing else []
    return found


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
