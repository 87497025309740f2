"""Two gloo processes of one program: how they are started, and how they end."""

import sys
import time
from typing import List

__all__ = ["end_process_group", "launch"]


def launch(script: str) -> List[str]:
    """Return the command that runs a script in two processes."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", script]


def end_process_group() -> None:
    """Without it a finished gloo job aborts now and then: Lightning ends NCCL's groups only."""
    import torch.distributed

    time.sleep(0.2)  # gloo's threads must be through
    torch.distributed.destroy_process_group()
