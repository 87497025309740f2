"""The agent of HyperPod in place of torchrun, for ``--launcher hyperpodrun``, with the operator that it waits for.

The agent (``hyperpod-elastic-agent``) takes torchrun's arguments but starts nothing by itself: HyperPod's operator in
Kubernetes tells it rank, world and master address by HTTP, reads its state, and ends it.
"""

import argparse
import http.client
import json
import os
import subprocess
import sys
import time
import urllib.request
from typing import Any, Dict, Optional

__all__ = ["main"]

# The agent's default.
_SERVER = "http://127.0.0.1:8080"
_POLL_SECONDS = 0.5


def main() -> None:
    """Run ``hyperpodrun`` with the arguments of torchrun in ``sys.argv``, and be its operator until its workers ended.

    Raises:
        SystemExit: With the agent's exit code, which is 1 if a worker failed.
    """
    parser = argparse.ArgumentParser(allow_abbrev=False)
    parser.add_argument("--nnodes", type=int, default=1)
    parser.add_argument("--node_rank", "--node-rank", type=int, default=0)
    parser.add_argument("--master_addr", "--master-addr", default="127.0.0.1")
    parser.add_argument("--master_port", "--master-port", type=int, default=7777)
    world, _ = parser.parse_known_args()
    # What its operator sets in a pod.
    environ = {**os.environ, "NNODES": str(world.nnodes)}
    # Its server would tell of each question.
    agent = subprocess.Popen(["hyperpodrun", "--server-log-level", "warning", *sys.argv[1:]], env=environ)
    start = {
        "rank": world.node_rank,
        "nnodes": world.nnodes,
        "faultCount": 0,
        "master_addr": world.master_addr,
        "master_port": world.master_port,
    }
    is_started = False
    while agent.poll() is None:
        state = _ask("/status")
        if state and not is_started:
            is_started = _ask("/start", start) is not None
        elif state and state["status"] in ("completed", "faulted"):
            # In a pod the operator would start the workers of a faulted agent again.
            _ask("/shutdown", {})
            break
        time.sleep(_POLL_SECONDS)
    raise SystemExit(agent.wait())


def _ask(path: str, content: Optional[Dict[str, Any]] = None) -> Optional[Dict[str, Any]]:
    """The agent's answer; ``None`` while it does not listen or answer."""
    body = None if content is None else json.dumps(content).encode()
    request = urllib.request.Request(f"{_SERVER}{path}", body, {"Content-Type": "application/json"})
    try:
        with urllib.request.build_opener(urllib.request.ProxyHandler({})).open(request, timeout=10) as answer:
            told: Dict[str, Any] = json.loads(answer.read() or b"{}")
    except (OSError, http.client.HTTPException):  # the second of an answer that breaks off, because the agent ends
        return None
    return told
