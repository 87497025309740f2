"""A library of training set-ups, to be interrupted anywhere and compared with a run that nothing interrupted.

Each is a function of :data:`SETUPS` under its name. It is given a Lightning namespace (``pytorch_lightning`` or
``lightning.pytorch``) and a :class:`Size`, and builds everything anew, as a new process would. Seed before that.
"""

from tests.helpers.setups import callbacks, data
from tests.helpers.setups.core import (
    BATCH_SIZE,
    SETUPS,
    Backwards,
    Counting,
    CountingLoader,
    Drawn,
    Numbers,
    Setup,
    Size,
    in_order,
    net,
    shuffled,
)

__all__ = [
    "BATCH_SIZE",
    "Backwards",
    "Counting",
    "CountingLoader",
    "Drawn",
    "Numbers",
    "SETUPS",
    "Setup",
    "Size",
    "callbacks",
    "data",
    "in_order",
    "net",
    "shuffled",
]
