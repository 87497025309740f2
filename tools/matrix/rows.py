"""The rows of the version matrix: which Python, torch and Lightning go together, and in which AWS images."""

from dataclasses import dataclass
from typing import Tuple

from lightning_sm._lightning.levels import SupportLevel, level_of_version

__all__ = ["ROWS", "Row"]


@dataclass(frozen=True)
class Row:
    """One row.

    Args:
        python: Major and minor version.
        torch: Its version.
        lightning: The version of Lightning.
        pins: Requirements that an installer would not find by itself, each with a reason below.
        bolts: lightning-bolts and the torchvision that it needs, where a version of it works.
        both: Whether ``lightning`` is installed beside ``pytorch-lightning``.
        images: AWS Deep Learning Containers that have this Python and torch, or one near by.
    """

    python: str
    torch: str
    lightning: str
    pins: Tuple[str, ...] = ()
    bolts: Tuple[str, ...] = ()
    both: bool = False
    images: str = ""

    @property
    def name(self) -> str:
        """The row's name, by which it is chosen and its pinned requirements are found."""
        return f"py{self.python}-torch{self.torch}-pl{self.lightning}".replace("+", "-")

    @property
    def line(self) -> str:
        """What a ``requirements.txt`` says to get this Lightning beside an image's torch."""
        return " ".join([f"pytorch-lightning=={self.lightning}", *self.pins])

    @property
    def version(self) -> Tuple[int, int]:
        """Major and minor version of Lightning."""
        major, minor = self.lightning.split(".")[:2]
        return int(major), int(minor)

    @property
    def level(self) -> SupportLevel:
        """What works there."""
        return level_of_version(self.version)


# jsonargparse: 4.22 and later, and 4.6 to 4.8, break Lightning's CLI before 1.7.
# six: torch 1.12 and 1.13 write TensorBoard files with it and do not require it.
# numpy<2: torch before 2.2 was built against NumPy 1.
# torchmetrics<1.6: from 1.6 on it requires torch 2, and pip would replace torch 1.13 for its sake.
# setuptools<81: Lightning up to 2.1 imports pkg_resources.
_OLD = ("jsonargparse[signatures]==4.21.0", "six", "numpy<2")
_NINE = ("numpy<2", "six", "torchmetrics<1.6")
_TWO = ("numpy<2", "setuptools<81")
_BOLTS_5 = ("lightning-bolts==0.5.0", "torchvision==0.13.1")
_BOLTS_7 = ("lightning-bolts==0.7.0", "torchvision==0.14.1")
# Both of the level "core", the oldest of "epoch", the oldest and the newest of "full".
ROWS = (
    Row("3.8", "1.12.1", "1.5.10", _OLD, _BOLTS_5, images="pytorch-training 1.12"),
    Row("3.9", "1.13.1", "1.9.5", _NINE, _BOLTS_7, images="pytorch-training 1.13"),
    Row("3.10", "2.1.2", "2.1.4", _TWO, both=True, images="pytorch-training 2.1, 2.2"),
    Row("3.12", "2.4.1", "2.5.0", both=True, images="pytorch-training 2.3 to 2.8 (up to 2.5 with SMDDP)"),
    Row("3.13", "2.15.0", "2.6.6", both=True, images="pytorch-training 2.10, pytorch 2.11 to 2.13"),
)
