"""The process group of workers that torchrun has started again (``--max-restarts``)."""

import importlib
import os
import socket
from datetime import timedelta
from typing import Any, Optional

from lightning_sm._logging import log
from lightning_sm._sagemaker.json_input import read_count
from lightning_sm._sagemaker.topology import Launcher, Topology

__all__ = ["agree_on_port"]

_TIMEOUT = timedelta(minutes=15)
_HINT = "Start torchrun with --rdzv-backend c10d and TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1."


def agree_on_port(topology: Topology, address: str) -> Optional[int]:
    """Return a new port for the process group of restarted workers; ``None`` if they may use torchrun's own.

    torchrun's agent keeps its store when it starts its workers again, and torch, from 2.5 on, reads all attempts' keys
    from one place: a rank may find the address of a rank of the attempt before, and wait for it for half an hour
    (https://github.com/pytorch/pytorch/issues/135712; seen with torch 2.8 and 2.15). Global rank 0 therefore publishes
    another port in that store under the number of the attempt, and hosts a store of its own there.

    With several hosts nothing is changed: each host's agent counts its own restarts, so that the number is not common.

    Environment variables, set by torchrun for its workers:

    ``TORCHELASTIC_RESTART_COUNT``
      The number of the attempt.

    ``TORCHELASTIC_USE_AGENT_STORE``
      Whether the process group uses the agent's store. It is set to ``False`` in this process if there is a new port.

    Args:
        topology: The world that the launcher created.
        address: The name or address of global rank 0.
    """
    attempt = read_count(os.environ, "TORCHELASTIC_RESTART_COUNT") or 0
    if topology.launcher != Launcher.TORCHRUN or attempt == 0 or topology.world_size == 1:
        return None
    if topology.is_rank_zero:
        log.info("torchrun has started the workers again: restart %d.", attempt)
    if os.environ.get("TORCHELASTIC_USE_AGENT_STORE") != "True" or topology.main_port is None:
        return None
    if topology.num_nodes > 1:
        if topology.is_rank_zero:
            log.warning("Ranks may find addresses of the attempt before in torchrun's store. HINT: %s", _HINT)
        return None
    port = _exchange(topology, address, topology.main_port, f"lightning_sm/restart_{attempt}/port")
    os.environ["TORCHELASTIC_USE_AGENT_STORE"] = "False"
    return port


def _exchange(topology: Topology, address: str, port: int, key: str) -> int:
    # torch does not export the name to type checkers.
    distributed: Any = importlib.import_module("torch.distributed")
    store = distributed.TCPStore(address, port, topology.world_size, False, _TIMEOUT, wait_for_workers=False)
    if topology.is_rank_zero:
        with socket.socket() as probe:
            probe.bind(("", 0))
            store.set(key, str(probe.getsockname()[1]))
    return int(store.get(key))
