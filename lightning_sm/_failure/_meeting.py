"""How ranks learn where the hub is: by the store through which torch itself made them meet."""

import json
import os
import sys
import threading
from datetime import timedelta
from typing import Any, Callable, Optional

from lightning_sm._failure._hub import Hub
from lightning_sm._failure._watch import HubAddress

__all__ = ["meet"]

_POLL_SECONDS = 0.2
_STORE_SECONDS = 10


def meet(
    stopped: threading.Event,
    *,
    address: str,
    port: int,
    host: Optional[str],
    hub: Optional[Hub],
    joined: Callable[[], None],
) -> Optional[HubAddress]:
    """Wait until this process has joined the process group, and return where the hub of the job is.

    It makes a connection of its own to the store, because the group's is blocked while the main thread waits for
    another rank. A torchrun that restarts its workers keeps the store; ``TORCHELASTIC_RESTART_COUNT``, which it sets,
    tells apart what the attempts left there.

    Args:
        stopped: Ends the waiting.
        address: Where the store is: that of global rank 0, or of the torchrun beside it.
        port: Its port.
        host: This host's name.
        hub: The hub, in global rank 0.
        joined: Is called as soon as this process has joined.
    """
    while not _has_joined():
        if stopped.wait(_POLL_SECONDS):
            return None
    joined()
    distributed: Any = sys.modules["torch.distributed"]
    store = distributed.TCPStore(
        host_name=address,
        port=port,
        is_master=False,
        wait_for_workers=False,
        timeout=timedelta(seconds=_STORE_SECONDS),
    )
    key = f"lightning_sm/failures/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}"
    if hub is not None:
        store.set(key, json.dumps([hub.start(), hub.token, host]))
        store.add(f"{key}/is_there", 1)
    # Adding nothing is the one question that every torch answers without waiting.
    while not store.add(f"{key}/is_there", 0):
        if stopped.wait(_POLL_SECONDS):
            return None
    hub_port, token, hub_host = json.loads(store.get(key))
    return HubAddress(address, int(hub_port), str(token), hub_host)


def _has_joined() -> bool:
    distributed = sys.modules.get("torch.distributed")
    # While it is being imported, parts of it are not there yet.
    is_initialized = getattr(distributed, "is_initialized", None)
    return is_initialized is not None and bool(is_initialized())
