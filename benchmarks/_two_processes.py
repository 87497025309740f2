"""Programs under torchrun, also as the only host of a job: how they are started, and how they end."""

import json
import os
import subprocess
import sys
import tempfile
import time
from typing import List, Sequence

__all__ = ["end_process_group", "launch", "run_as_job"]


def launch(script: str) -> List[str]:
    """Return the command that runs a script in two processes."""
    return [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", script]


def run_as_job(command: Sequence[str]) -> None:
    """Run a command as the only host of a new job."""
    with tempfile.TemporaryDirectory() as base:
        config = os.path.join(base, "input", "config")
        os.makedirs(config)
        host = {"current_host": "algo-1", "hosts": ["algo-1"], "network_interface_name": "lo"}
        with open(os.path.join(config, "resourceconfig.json"), "w", encoding="utf-8") as file:
            json.dump(host, file)
        subprocess.run(command, env={**os.environ, "SAGEMAKER_BASE_DIR": base}, check=True)


def end_process_group() -> None:
    """Without it a finished gloo job aborts now and then: Lightning ends NCCL's groups only."""
    import torch.distributed

    time.sleep(0.2)  # gloo's threads must be through
    torch.distributed.destroy_process_group()
