"""One run of the campaign as a value: what is trained, when and how it is ended, what happens to its files."""

import random
from dataclasses import dataclass
from typing import Sequence, Tuple

from tests.helpers.accelerator import ON_GPU
from tests.helpers.setups import SETUPS
from tools.faults.programs import PROGRAMS
from tools.faults.results import RESULT_SETUPS

__all__ = [
    "ALONE",
    "DAMAGES",
    "SHARD_DAMAGES",
    "IN_ONE_FILE",
    "Fault",
    "KILLS",
    "KNOWN",
    "LIBRARY",
    "Moment",
    "SHARDED_SETUPS",
    "WHERES",
    "draw",
]

#: What ends the job: all is killed, all is asked to stop, a rank is killed, a host vanishes, the disk has no room, the
#: directory is read-only.
KILLS = ("job", "SIGTERM", "rank", "host", "full disk", "read-only directory")

#: In the midst of what. A gap is between the last step and the end of the fit.
WHERES = ("step", "validation", "saving", "export", "gap")

#: What happens to the newest save, or one of its shards, or to the newest record of a fit, before the job starts again.
#: The last one happens on one host only.
DAMAGES = (
    "none",
    "truncated",
    "empty",
    "bit-flipped",
    "missing",
    "record missing",
    "fit record truncated",
    "half-synced",
)

#: What else happens to a save that is a folder of shards.
SHARD_DAMAGES = ("shard doubled", "shard of another save", "half-uploaded")

#: The strategies whose checkpoints are files although the model is sharded.
IN_ONE_FILE = ("ddp", "fsdp_full", "fsdp2_full")

#: Set-ups that each sharded strategy can train, with one optimizer and without clipping.
SHARDED_SETUPS = (
    "accumulation",
    "epoch_mean",
    "folds",
    "noisy_data",
    "schedule_by_step",
    "stages",
    "validation_within_epochs",
)

#: What is trained, by name: set-ups of one fit, and programs of several.
LIBRARY = {**SETUPS, **RESULT_SETUPS, **PROGRAMS}

_LAZY = "a sampler that draws while the epoch runs is not repeated"

#: Set-ups whose resumed runs may end otherwise, each with the limit of docs/checkpoints.md that says so.
KNOWN = {
    "augmenting_workers": "random augmentation inside worker processes is not repeated",
    "lazy_sampler": _LAZY,
    "lazy_sampler_with_generator_and_workers": _LAZY,
    "stream": "an `IterableDataset` starts at its beginning",
}

#: What Lightning refuses where there are several processes, and an entry point that is not started by torchrun.
ALONE = ("batch_size_finder", "processes", "sampler_that_shuffles_its_own_list")

#: Whose saves are larger than the small disk.
LARGE = ("plain_objects",)

#: One of so many runs trains a program of several fits.
_PROGRAMS_EVERY = 5

# Seconds between two saves. With the smallest each moment that can be saved is saved.
_SAVE_EVERY = (0.2, 0.001, 0.001)

# Seconds between what is waited for and the end, within the writing of a large file.
_DELAY = 0.06


@dataclass(frozen=True)
class Moment:
    """When an interruption comes.

    Args:
        where: One of ``WHERES``.
        share: After which share of all steps; for exports and gaps, of their events.
        delay: Seconds from then on.
    """

    where: str
    share: float
    delay: float = 0.0

    def __str__(self) -> str:
        return f"{self.where} {self.share:.2f}"


@dataclass(frozen=True)
class Fault:
    """One run.

    Args:
        seed: Of this run; it decides everything else.
        setup: What is trained, by its name in ``LIBRARY``.
        hosts: How many hosts, each with directories of its own.
        processes: Processes on each host.
        kill: One of ``KILLS``.
        damage: One of ``DAMAGES``, or of ``SHARD_DAMAGES`` where each save is a folder of shards.
        moments: The interruptions. The damage follows the first.
        victim: The rank or host that is killed, where it is one.
        background: Whether checkpoints are saved in the background.
        ballast: Megabytes that make each file long enough to be caught half written.
        strategy: A kind of ``tests.helpers.sharded.KINDS``; empty for Lightning's choice.
        save_every: Seconds between two saves.
    """

    seed: int
    setup: str
    hosts: int
    processes: int
    kill: str
    damage: str
    moments: Tuple[Moment, ...]
    victim: int
    background: bool
    ballast: int
    strategy: str = ""
    save_every: float = _SAVE_EVERY[0]

    def __str__(self) -> str:
        more = ", background" * self.background + f", {self.ballast} MB" * bool(self.ballast)
        more += f", saved each {self.save_every} s"
        moments = " and ".join(map(str, self.moments))
        strategy = f"{self.strategy}, " if self.strategy else ""
        return f"{strategy}{self.setup}, {self.hosts}x{self.processes}, {self.kill} at {moments}, {self.damage}{more}"


def draw(seed: int, setups: Sequence[str], *, mounts: bool, strategies: Sequence[str] = ()) -> Fault:
    """Draw the run that belongs to ``seed``.

    Args:
        seed: Any number. The set-ups take turns, and so do the programs of several fits in a fifth of the runs.
        setups: Names of set-ups.
        mounts: Whether this machine lets the campaign mount file systems, which two kinds of trouble need, and two
            hosts under a strategy: each has a directory of its own under the same path.
        strategies: Kinds of ``tests.helpers.sharded.KINDS`` that take turns, with two processes.
    """
    chance = random.Random(seed)
    strategy = strategies[seed % len(strategies)] if strategies else ""
    # Two processes in a third of the runs.
    worlds = ((1, 1), (1, 1), (1, 1), (1, 1), (1, 2), (2, 1)) if not strategy else ((1, 2), (2, 1))[: 1 + mounts]
    hosts, processes = chance.choice(worlds)
    if ON_GPU and processes > 1:
        hosts, processes = processes, 1
    setup = chance.choice(setups) if strategy else _in_turn(seed, setups)
    if setup in ALONE:
        hosts, processes = 1, 1
    kills = ["job"] * 4 + ["SIGTERM"] * 3
    kills += ["rank"] * 2 * (hosts * processes > 1) + ["host"] * 2 * (hosts > 1)
    kills += ["full disk", "read-only directory"] * (mounts and hosts == 1 and setup not in LARGE)
    kill = chance.choice(kills)
    on_disk = kill in ("full disk", "read-only directory")
    in_shards = strategy and strategy not in IN_ONE_FILE
    return Fault(
        seed=seed,
        setup=setup,
        hosts=hosts,
        processes=processes,
        kill=kill,
        damage=chance.choice(["none", "none", *DAMAGES, *(SHARD_DAMAGES if in_shards else ())]),
        moments=tuple(_moment(chance, on_disk) for _ in range(chance.choice((1, 1, 2)))),
        victim=chance.randrange(hosts * processes),
        background=chance.random() < 0.3,
        ballast=0 if on_disk else chance.choice((0, 0, 8 if strategy else 24)),
        strategy=strategy,
        save_every=chance.choice(_SAVE_EVERY),
    )


def _in_turn(seed, setups):
    programs = [name for name in setups if name in PROGRAMS]
    others = [name for name in setups if name not in PROGRAMS]
    if not programs or not others:
        return setups[seed % len(setups)]
    turn, rest = divmod(seed, _PROGRAMS_EVERY)
    if rest == 0:
        return programs[turn % len(programs)]
    return others[(seed - turn - 1) % len(others)]


def _moment(chance, on_disk):
    where = "step" if on_disk else chance.choice(("step", "step", "step", *WHERES))
    share, delay = chance.uniform(0.02, 0.95), chance.uniform(0.0, _DELAY)
    # A validation is over by then.
    return Moment(where, share, delay if where in ("saving", "export") else 0.0)
