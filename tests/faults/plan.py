"""One run of the campaign as a value: what is started, when and how it ends, what happens to its files."""

import random
from dataclasses import dataclass
from typing import Tuple

__all__ = ["DAMAGES", "Fault", "KILLS", "draw"]

#: What ends the job: a rank or everything is killed, a host vanishes, the disk has no room, the directory is read-only.
KILLS = ("job", "rank", "host", "full disk", "read-only directory")

#: What happens to the newest checkpoint before the job starts again. The last one differs between two hosts.
DAMAGES = ("none", "truncated", "empty", "bit-flipped", "half-synced")


@dataclass(frozen=True)
class Fault:
    """One run.

    Args:
        seed: Of this run; it decides everything else.
        hosts: How many hosts, each with directories of its own.
        processes: Processes on each host. One process without a launcher where both are one, else torchrun.
        kill: One of ``KILLS``.
        damage: One of ``DAMAGES``.
        moments: After which share of all steps each interruption comes. The damage follows the first.
        victim: The rank or host that is killed, where it is one.
        background: Whether checkpoints are saved in the background.
    """

    seed: int
    hosts: int
    processes: int
    kill: str
    damage: str
    moments: Tuple[float, ...]
    victim: int
    background: bool

    def __str__(self) -> str:
        mode = ", background" if self.background else ""
        return f"{self.hosts}x{self.processes}, {self.kill} at {self.moments[0]:.2f}, {self.damage}{mode}"


def draw(seed: int, *, mounts: bool) -> Fault:
    """Draw the run that belongs to ``seed``.

    Args:
        seed: Any number.
        mounts: Whether this machine lets the campaign mount file systems, which two kinds need.
    """
    chance = random.Random(seed)
    # Most runs are the cheapest: one process.
    hosts, processes = chance.choice(((1, 1), (1, 1), (1, 1), (1, 2), (2, 1)))
    kills = ["job", "job"]
    if hosts * processes > 1:
        kills.append("rank")
    if hosts > 1:
        kills += ["host", "host"]
    if mounts and hosts == 1:
        kills += ["full disk", "read-only directory"]
    kill = chance.choice(kills)
    damage = chance.choice(DAMAGES if hosts > 1 else DAMAGES[:-1])
    moments = tuple(sorted(chance.uniform(0.02, 0.95) for _ in range(chance.choice((1, 1, 2)))))
    return Fault(
        seed=seed,
        hosts=hosts,
        processes=processes,
        kill=kill,
        damage=damage,
        moments=moments,
        victim=chance.randrange(hosts * processes),
        background=chance.random() < 0.3,
    )
