"""How much of this package works with the Lightning that is installed: three levels, decided by its version."""

from enum import IntEnum
from typing import Optional, Tuple

from lightning_sm._lightning.namespaces import Namespace

__all__ = ["VERIFIED", "SupportLevel", "describe_level", "level_of_version", "support_level"]

# Lightning and torch of each row of the version matrix, as major and minor.
VERIFIED = frozenset(
    {
        ((1, 5), (1, 12)),
        ((1, 9), (1, 13)),
        ((2, 1), (2, 1)),
        ((2, 5), (2, 4)),
        ((2, 6), (2, 15)),
    }
)


class SupportLevel(IntEnum):
    """What works with a version of Lightning; a higher level has everything of the lower ones."""

    #: Environment, ranks, SMDDPStrategy, CLI with routing, resuming from the start of an epoch, failure reasons,
    #: graceful stop, export of the state.
    CORE = 1
    #: Everything but resuming within an epoch, and what that Lightning lacks itself.
    EPOCH = 2
    #: Everything. From Lightning 2.5 on the loops restore the middle of an epoch (``RestartStage``).
    FULL = 3

    def __str__(self) -> str:
        return self.name.lower()


def level_of_version(version: Tuple[int, ...]) -> SupportLevel:
    """The level of a version of Lightning.

    >>> str(level_of_version((2, 6))), str(level_of_version((2, 1))), str(level_of_version((1, 9)))
    ('full', 'epoch', 'core')

    Args:
        version: At least major and minor.
    """
    if version >= (2, 5):
        return SupportLevel.FULL
    return SupportLevel.EPOCH if version >= (2, 1) else SupportLevel.CORE


def support_level(namespace: Namespace) -> SupportLevel:
    """The level of the Lightning of a namespace, which is imported for that."""
    return level_of_version(namespace.version)


_LACKS = {
    SupportLevel.CORE: (
        "the interrupted epoch begins again in a restart, the model's state is exported, and there are no progress "
        "lines, metric lines, report and sharded strategies"
    ),
    SupportLevel.EPOCH: "the interrupted epoch begins again in a restart",
}


def describe_level(namespace: Namespace) -> Optional[str]:
    """The line that says what the level of this Lightning lacks, and whether it is verified; ``None`` for all of it."""
    level, version = support_level(namespace), namespace.version_text
    lightnings = {lightning for lightning, _ in VERIFIED}
    parts = []
    if level in _LACKS:
        parts.append(f"{namespace.name} {version} has the level {level} of lightning_sm: {_LACKS[level]}.")
    if namespace.version > max(lightnings) or (level is SupportLevel.CORE and namespace.version not in lightnings):
        parts.append(f"lightning_sm is not verified with {namespace.name} {version}.")
    return " ".join(parts) or None
