"""Makes it unlikely that a forked worker of a data loader hangs, where Python has that fault."""

import os
import sys
import time

__all__ = ["pause_before_forks"]

_SECONDS = 0.05


def pause_before_forks():
    """Let the threads of gloo come to rest before each fork of this process.

    When a thread of gloo drops a tensor that Python has made, it attaches to the interpreter and holds a lock of
    CPython for a moment. Before Python 3.12 (and the last patch releases of 3.8 to 3.11, of September 2024) a fork at
    that moment copies the lock as taken, and the child hangs before it runs any code. Nothing of ours takes part in it:
    https://github.com/python/cpython/issues/112275
    """
    if sys.version_info < (3, 12):
        os.register_at_fork(before=lambda: time.sleep(_SECONDS))
