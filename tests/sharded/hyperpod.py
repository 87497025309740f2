"""HyperPod's real elastic agents on this machine, and in place of the training operator the requests that it sends."""

import contextlib
import json
import os
import signal
import subprocess
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.helpers.environ import without_launcher
from tests.helpers.processes import ROOT, free_port

__all__ = ["Agent", "PYTHON", "start_all", "wait_for"]

#: A Python that has hyperpod-elastic-agent, which needs torch before 2.12, and a Lightning.
PYTHON = os.environ.get("LIGHTNING_SM_HYPERPOD_PYTHON")


class Agent:
    """A ``hyperpodrun`` that waits for the operator, as in a pod; its output is in a file."""

    def __init__(self, folder, name, script, *arguments, processes=1, **variables):
        self.port = free_port()
        self.log_path = Path(folder, f"{name}.txt")
        environ = {**without_launcher(os.environ), "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "NNODES": "1"}
        environ.update({key: str(value) for key, value in variables.items()})
        with open(self.log_path, "wb") as log:
            self.process = subprocess.Popen(
                [
                    *(PYTHON, "-m", "hyperpod_elastic_agent.run", "--nnodes=1", f"--nproc-per-node={processes}"),
                    *("--server-host=127.0.0.1", f"--server-port={self.port}", "--server-log-level=warning"),
                    *(f"--rdzv-conf=resource_config_dir={Path(folder, name)}", str(script), *map(str, arguments)),
                ],
                env=environ,
                cwd=folder,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    @property
    def state(self):
        return json.loads(self._request("GET", "status"))["status"]

    def start(self, rank, nodes, main_port, restarts):
        self._request(
            "POST",
            "start",
            rank=rank,
            nnodes=nodes,
            faultCount=restarts,
            master_addr="127.0.0.1",
            master_port=main_port,
            ipVersion=str(restarts),
            rankIps=[{"rank": each, "ip": "127.0.0.1"} for each in range(nodes)],
            progress={},
        )

    def stop(self):
        """What the operator sends before it scales a job that has an elastic policy."""
        self._request("POST", "stop", is_graceful=True, timeout=60)

    def end(self):
        """End the agent, by force if it does not listen, and what it has started."""
        with contextlib.suppress(OSError):
            self._request("POST", "shutdown")
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.process.wait(15)
        os.killpg(self.process.pid, signal.SIGKILL)
        return self.process.wait()

    def _request(self, method, path, **content):
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}/{path}", method=method)
        if content:
            request.data = json.dumps(content).encode()
            request.add_header("Content-Type", "application/json")
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.read()


def start_all(agents, restarts):
    """Give the agents their ranks, as one job."""
    port = free_port()
    for rank, agent in enumerate(agents):
        agent.start(rank, len(agents), port, restarts)


def wait_for(agents, *states, timeout=120):
    """Wait until each agent is in one of the states."""
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(OSError):
            found = [agent.state for agent in agents]
            if set(found) <= set(states):
                return
        assert time.monotonic() < deadline, "\n".join(agent.log[-4000:] for agent in agents)
        assert all(agent.process.poll() is None for agent in agents), "\n".join(agent.log[-4000:] for agent in agents)
        time.sleep(0.1)
