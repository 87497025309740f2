"""The rows of the version matrix: which Python, torch and Lightning go together, and in which AWS images."""

from dataclasses import dataclass
from typing import Tuple

__all__ = ["FOR_CI", "ROWS", "Row"]

# The oldest Lightning of each level, as docs/versions.md describes them, but for the oldest of all.
_LEVELS = {"full": (2, 5), "epoch": (2, 1)}


@dataclass(frozen=True)
class Row:
    """One row.

    Args:
        python: Major and minor version.
        torch: Its version.
        lightning: The version of Lightning.
        pins: Requirements that pip would not find by itself, each with a reason below.
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
    def level(self) -> str:
        """What works there: ``full``, ``epoch`` or ``core``."""
        return next((level for level, oldest in _LEVELS.items() if self.version >= oldest), "core")


# jsonargparse: 4.22 and later, and 4.6 to 4.8, break Lightning's CLI before 1.7.
# six: torch 1.12 and 1.13 write TensorBoard files with it and do not require it.
# numpy<2: torch before 2.2 was built against NumPy 1.
# torchmetrics<1: Lightning 1.7 imports what 1.0 removed.
# torchmetrics<1.6: from 1.6 on it requires torch 2, and pip would replace torch 1.13 for its sake.
# setuptools<81: Lightning up to 2.1 imports pkg_resources.
_OLD = ("jsonargparse[signatures]==4.21.0", "six", "numpy<2")
_NINE = ("numpy<2", "six", "torchmetrics<1.6")
_TWO = ("numpy<2", "setuptools<81")
_BOLTS_5 = ("lightning-bolts==0.5.0", "torchvision==0.13.1")
_BOLTS_7 = ("lightning-bolts==0.7.0", "torchvision==0.14.1")
ROWS = (
    Row("3.8", "1.12.1", "1.5.10", _OLD, _BOLTS_5, images="pytorch-training 1.12"),
    Row("3.8", "1.12.1", "1.6.5", _OLD, images="pytorch-training 1.12"),
    Row("3.8", "1.12.1", "1.7.7", (*_OLD, "torchmetrics<1"), images="pytorch-training 1.12"),
    Row("3.9", "1.13.1", "1.8.6", _NINE, images="pytorch-training 1.13"),
    Row("3.9", "1.13.1", "1.9.5", _NINE, _BOLTS_7, images="pytorch-training 1.13"),
    Row("3.10", "2.0.1", "2.0.9", _TWO, images="pytorch-training 2.0"),
    Row("3.10", "2.1.2", "2.1.4", _TWO, both=True, images="pytorch-training 2.1, 2.2"),
    Row("3.11", "2.4.1", "2.4.0", both=True, images="pytorch-training 2.3, 2.4, 2.5 (the last with SMDDP)"),
    Row("3.11", "2.13.0+cpu", "2.6.6", both=True, images="pytorch 2.13 (CPU)"),
    Row("3.12", "2.8.0", "2.5.5", both=True, images="pytorch-training 2.6, 2.7, 2.8"),
    Row("3.13", "2.15.0", "2.6.6", both=True, images="pytorch-training 2.10, pytorch 2.11 to 2.13"),
)
FOR_CI = (ROWS[0].name, ROWS[4].name, ROWS[7].name, ROWS[-1].name)
