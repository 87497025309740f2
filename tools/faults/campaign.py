"""Plays one fault and judges how the job went on."""

import collections
import contextlib
import random
import signal
import subprocess
import tempfile
import time
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, List, Optional, Set, Tuple

from tools.faults.damage import damage_newest, files_in_part
from tools.faults.job import Job
from tools.faults.plan import KNOWN, Fault
from tools.faults.series import Position, Series

__all__ = ["DIFFERS", "Reference", "Verdict", "can_mount", "play", "reference"]

#: Begins the problem of a run that ended, but with other values.
DIFFERS = "other than without interruption"

# At most so many saves of a fit are kept.
_KEPT = 2

# What model.json says of the best checkpoint.
_OF_BEST = ("checkpoint", "monitor", "score")

# A save's own time, a time between two saves that is stretched by it, and a machine that is busy with other things.
_SLACK = 2.0

# An end must come within this time of its cause, without anybody's help.
_BOUND = 60.0

_ON_DISK = ("full disk", "read-only directory")


@dataclass(frozen=True)
class Reference:
    """What a run that nothing interrupts ends with.

    Args:
        fits: What each fit ends with: steps, epoch, weights, exported model, metrics, best checkpoint, random numbers.
        starts: The step with which each fit begins.
        steps: Each fit and step that was trained, in order.
        metrics: Each value that was logged.
        counts: How often each kind of event was told.
        files: The files of the model directory at the end, by their names.
    """

    fits: List[Dict[str, Any]]
    starts: List[int]
    steps: List[Position]
    metrics: FrozenSet[Tuple[int, int, str, str]]
    counts: Dict[str, int]
    files: Dict[str, Any]

    @property
    def end(self) -> Position:
        """Where a job is that has nothing left to train."""
        return (len(self.fits), 0)

    def began(self, position: Position) -> Set[Position]:
        """With which fit and step training may begin that goes on from a position."""
        fit, step = position
        if position == self.end or step < self.fits[fit]["steps"]:
            return {position}
        return {position, self.end if fit + 1 == len(self.fits) else (fit + 1, self.starts[fit + 1])}


@dataclass(frozen=True)
class Verdict:
    """What became of one fault.

    Args:
        fault: The fault.
        problem: What went wrong, or ``None``.
        times: How often the job was interrupted; one that ended before its moment was not.
        lost_steps: Steps that were trained again, after the worst interruption.
        lost_seconds: The time that these had taken.
        replayed: Fits that had ended before an interruption, and were not trained again.
    """

    fault: Fault
    problem: Optional[str] = None
    times: int = 0
    lost_steps: int = 0
    lost_seconds: float = 0.0
    replayed: int = 0


def reference(server, setup, hosts, processes, strategy=""):
    """Run a set-up in a world without interruption."""
    with tempfile.TemporaryDirectory(prefix="lightning-sm-faults-") as folder:
        # As few saves as can be.
        job = Job(server, folder, setup, hosts, processes, {"save_every": "1h"}, strategy=strategy).start()
        codes = job.wait(180)
        job.end()
        if set(codes) != {0}:
            raise RuntimeError(f"the reference run of {setup} ended with {codes}\n{job.output[-3000:]}")
        told, counts = job.told(), collections.Counter()
        for line in told:
            counts.update(line.keys())
        starts = {line["fit"]: line["start"] for line in told if line.get("rank") == 0}
        steps = sorted({(line["fit"], line["step"]) for line in told if "step" in line})
        return Reference(job.results, list(starts.values()), steps, frozenset(job.metrics()), counts, job.files())


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
    options = {"save_every": f"{fault.save_every}s", "async_save": fault.background}
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
    times, lost_steps, lost_seconds, replayed, resumptions, in_part = 0, 0, 0.0, 0, set(), set()
    # A fit that had ended before its files were damaged.
    doubtful = None
    job.start()
    for number, moment in enumerate(fault.moments):
        if _wait_for(moment, job, expected):
            times += 1
            time.sleep(moment.delay)
            _interrupt(fault, moment, job, expected)
        else:
            codes = job.wait(_BOUND)
            assert set(codes) == {0}, f"exit codes {codes} without an interruption"
        told = job.told()
        job.end()
        broken = _in_part(job) - in_part
        assert not broken, f"{sorted(broken)} stand there in part"
        _collect(job, chance)
        undamaged = _positions(job, expected)
        damaged = _damage(job, fault.damage if number == 0 else "none", chance)
        in_part = _in_part(job)
        positions = _positions(job, expected)
        if damaged is not None and damaged.had_ended:
            doubtful = damaged.fit
        reopened = _positions(job, expected, reopened=doubtful)
        job.start()
        began = _first_step(job, expected)
        if doubtful is not None:
            # It is gone on with or replayed, and so are the fits after it.
            first, last = min(reopened), max(undamaged)
            allowed = {each for each in (began,) if first <= each <= max(expected.began(last))}
        else:
            allowed = {each for position in positions for each in expected.began(position)}
        # An epoch whose data cannot be found again is trained from its beginning, so that such a run ends later.
        later = fault.setup in KNOWN and began == expected.end
        what = f"began with {began}" if began != expected.end else f"ended with {job.wait(0)}"
        assert began in allowed or later, f"it {what}, and the newest whole saves are of {positions}"
        resumptions |= {*positions, began}
        if times:
            replayed += began[0]
        if began == expected.end or doubtful is not None:
            continue
        steps, seconds = _lost(told, min(positions))
        bound = (1 if damaged is None else 2) * fault.save_every + _SLACK
        assert seconds <= bound, f"{steps} steps of {seconds:.1f} s were lost"
        lost_steps, lost_seconds = max(lost_steps, steps), max(lost_seconds, seconds)
    codes = job.wait(180)
    assert set(codes) == {0}, f"exit codes {codes} at the end"
    assert len(job.results) == len(expected.fits), f"{len(job.results)} fits ended, not {len(expected.fits)}"
    kept = collections.Counter(save.fit for save in Series(job.checkpoints()).saves)
    assert max(kept.values(), default=0) <= _KEPT, f"saves that are kept: {dict(kept)}"
    differences = _differences(fault, job, expected, resumptions)
    assert not differences, f"{DIFFERS}: {'; '.join(differences)}"
    return Verdict(fault, None, times, lost_steps, lost_seconds, replayed)


def _wait_for(moment, job, expected):
    """Wait for a moment; return whether it came before the end of the job."""
    if moment.where in ("export", "gap"):
        count = 1 + int(moment.share * expected.counts[moment.where])
        return job.wait_for(lambda told: sum(moment.where in line for line in told) >= count)
    # The reference has saved as little as can be.
    where = moment.where if moment.where in {*expected.counts, "saving"} else "step"
    moved = expected.steps[int(moment.share * len(expected.steps))]
    return job.wait_for(lambda told: any(where in line and (line["fit"], line["at"]) >= moved for line in told))


def _interrupt(fault, moment, job, expected):
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
    has_ended = codes[0] == 0 and len(job.results) == len(expected.fits)
    if allowed is not None:
        assert set(codes) <= allowed or has_ended, f"exit codes {codes} after SIGTERM"
        done, newest = max(job.steps(), default=(0, 0)), _uploaded(job, expected)
        assert newest >= done or 143 not in codes, f"it stopped after {done}, and the newest save is of {newest}"
    elif moment.where not in ("export", "gap"):
        assert all(codes) or has_ended, f"exit codes {codes} after '{fault.kill}'"


def _in_part(job):
    """The paths of what stands there in part on some host."""
    whole = job.base is None
    found = set()
    for root in map(job.checkpoints, job.names):
        found |= {str(path.relative_to(root)) for path in files_in_part(root, of_all_hosts=whole)}
    return found


def _collect(job, chance):
    """Bring what has been uploaded to all hosts."""
    if job.base is None:
        job.sync()
    else:
        job.upload(chance.sample(job.names, len(job.names)))
        job.download()


def _damage(job, kind, chance):
    """Damage the newest of what all hosts have; return what was damaged, if there was anything."""
    if kind == "half-synced":
        return damage_newest(job.checkpoints(chance.choice(job.names)), kind, chance, job.parts)
    found = None
    state = chance.getstate()
    for name in job.names:
        chance.setstate(state)
        found = damage_newest(job.checkpoints(name), kind, chance, job.parts)
    return found


def _positions(job, expected, *, reopened=None):
    """Where the job may go on: by what is whole on all of its hosts, or on one that sends it to the others.

    Args:
        job: The job.
        expected: The run without interruption.
        reopened: A fit that counts as not ended.
    """
    hosts = [Series(job.checkpoints(name)) for name in job.names]
    return {_position(job, expected, found, reopened) for found in (hosts, *([host] for host in hosts))}


def _position(job, expected, hosts, reopened=None):
    """Where the job goes on by what is the same on these hosts."""
    first = hosts[0]
    assert len(first.programs) <= len(job.parts), f"there are the series of {first.programs}"
    saves = [host.whole() for host in hosts]
    common = set.intersection(*({save.key for save in each} for each in saves))
    ended = set.intersection(*(host.ended for host in hosts)) - {reopened}
    whole = [save for save in saves[0] if save.key in common]
    return first.position(whole, frozenset(ended), job.parts, expected.starts)


def _uploaded(job, expected):
    """Where the job would go on by what its hosts have uploaded."""
    if job.base is None:
        return _position(job, expected, [Series(job.checkpoints())])
    job.upload(job.names)
    return _position(job, expected, [Series(job.prefix)])


def _first_step(job, expected):
    """The fit and the step with which rank zero begins to train; the end where it trains no further."""
    job.wait_for(lambda told: any("step" in line for line in told))
    told = job.told()
    fit = next((line["fit"] for line in told if "step" in line), None)
    starts = [line["start"] for line in told if line.get("rank") == 0 and line["fit"] == fit]
    return expected.end if fit is None else (fit, starts[0])


def _lost(told, newest):
    """The steps, and the seconds of training, from the newest save to the end of an attempt."""
    times = {}
    for line in told:
        if "step" in line:
            times.setdefault((line["fit"], line["step"]), line["time"])
    lost = [position for position in times if position > newest]
    if not lost:
        return 0, 0.0
    began = min(line["time"] for line in told if "rank" in line and line["fit"] == min(lost)[0])
    return len(lost), times[max(lost)] - times.get(newest, began)


def _differences(fault, job, expected, resumptions):
    """In what the end of a job differs from that of a run without interruption."""
    found = []
    for ends, values in zip(job.results, expected.fits):
        if ends["best"] is not None and values["best"] is not None and "weights" not in ends["best"]:
            values = {**values, "best": {**values["best"]}}
            values["best"].pop("weights", None)
        found += [f"{what} of fit {values['fit']} {ends[what]}, not {values[what]}" for what in _other(ends, values)]
    files, wanted = job.files(), expected.files
    if job.strategy and len(job.names) > 1:
        # Each host has its own shards of the best checkpoint only, so that the last weights are exported.
        files, wanted = _without_best(files), _without_best(wanted)
    found += [f"file {name}: {files.get(name)}, not {wanted.get(name)}" for name in _other(files, wanted)]
    logged = job.metrics()
    wrong, missing = sorted(logged - expected.metrics), sorted(expected.metrics - logged)
    # Lightning logs a step, and an epoch, after the hook in which it is saved: a job that ends there never does. A job
    # that is asked to stop does so before the epoch's end.
    stopped = fault.kill == "SIGTERM"
    missing = [
        (fit, step, name, value)
        for fit, step, name, value in missing
        if (fit, step + 1) not in resumptions or (stopped and name.endswith("_epoch"))
    ]
    found += [f"{len(wrong)} logged values such as {wrong[:3]}"] if wrong else []
    found += [f"{len(missing)} values were not logged, such as {missing[:3]}"] if missing else []
    return found


def _without_best(files):
    return {
        name: {key: value for key, value in content.items() if key not in _OF_BEST}
        if isinstance(content, dict)
        else content
        for name, content in files.items()
    }


def _other(first, second):
    """The keys whose values differ."""
    return [key for key in sorted({*first, *second}) if first.get(key) != second.get(key)]


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
