"""Ends process groups before the interpreter goes away."""

import atexit
import sys
import time

__all__ = ["destroy_at_exit"]

# Gloo's threads drop the tensors of the last collective a moment after it is over, and need the interpreter for that.
# Destroying a group holds the interpreter and waits for these threads, so that each can wait for the other for good;
# seen with torch 2.0.1 in one finished job of twenty, and with 2.4.1. A moment of sleep lets the threads finish first.
_QUIET_SECONDS = 0.2

_registered = False


def destroy_at_exit() -> None:
    """Destroy the default process group when the program ends, if there is one by then.

    Lightning does so for NCCL only. Without it about one finished gloo job in ten ends with "terminate called without
    an active exception", which torchrun takes for a failure: gloo's threads meet a half-dismantled interpreter.
    Nothing is registered as long as torch has not been loaded.
    """
    global _registered
    if "torch.distributed" in sys.modules and not _registered:
        atexit.register(_destroy)
        _registered = True


def _destroy() -> None:
    import torch.distributed as dist

    if dist.is_available() and dist.is_initialized():
        time.sleep(_QUIET_SECONDS)
        dist.destroy_process_group()
