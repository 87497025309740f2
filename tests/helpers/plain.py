"""How programs of Lightning alone end."""

import time

__all__ = ["end_process_group"]


def end_process_group():
    """End the default group. Lightning leaves it to the interpreter, and now and then a finished job aborts."""
    import torch.distributed as dist

    if dist.is_initialized():
        # Without it gloo's threads and the destruction may wait for each other for good: see destroy_at_exit.
        time.sleep(0.2)
        dist.destroy_process_group()
