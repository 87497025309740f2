"""The job under attack: real processes over SageMaker's files, one folder for each host."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from lightning_sm.rehearse._processes import end_all_with
from tests.faults import train
from tests.helpers.environ import without_launcher
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import ROOT, local_rendezvous

__all__ = ["Job", "TOTAL_STEPS"]

TOTAL_STEPS = train.EPOCHS * train.BATCHES


class Job:
    """A job whose containers come and go. What survives them is the folder ``checkpoints`` of each host, as with S3."""

    def __init__(self, folder, hosts, processes, options):
        self.folder = Path(folder)
        self.names = [f"algo-{number + 1}" for number in range(hosts)]
        self.processes = processes
        self.options = options
        self.attempt = 0
        self.running = []
        for name in self.names:
            self.checkpoints(name).mkdir(parents=True)

    def checkpoints(self, host="algo-1"):
        return self.folder / host / "checkpoints"

    @property
    def result(self):
        return json.loads((self.folder / "result.json").read_text())

    @property
    def output(self):
        logs = sorted(self.folder.glob(f"log-{self.attempt}-*.txt"))
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def failure(self, host):
        path = self.folder / host / "output" / "failure"
        return path.read_text() if path.exists() else None

    def lines(self, attempt=None):
        """What the ranks have written in an attempt: their PIDs, and rank zero's steps."""
        path = self.folder / f"steps-{attempt or self.attempt}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def steps(self, attempt=None):
        """When each step of an attempt was done."""
        return {line["step"]: line["time"] for line in self.lines(attempt) if "step" in line}

    @property
    def began(self):
        """When the attempt's first rank began to train."""
        return min(line["time"] for line in self.lines() if "rank" in line)

    def start(self):
        """Start fresh containers with the checkpoints that are there."""
        self.attempt += 1
        several = len(self.names) * self.processes > 1
        rendezvous = local_rendezvous()
        for number, name in enumerate(self.names):
            variables = self._fresh_container(name)
            start = []
            if several:
                start = ["-m", "torch.distributed.run", "--nnodes", str(len(self.names)), "--node_rank", str(number)]
                start += ["--nproc_per_node", str(self.processes), *rendezvous]
            script = [
                train.__file__,
                str(self.folder / f"steps-{self.attempt}.jsonl"),
                str(self.folder / "result.json"),
            ]
            with open(self.folder / f"log-{self.attempt}-{number}.txt", "wb") as log:
                self.running.append(
                    subprocess.Popen(
                        [sys.executable, *start, *script, json.dumps(self.options)],
                        env={**without_launcher(os.environ), **variables},
                        cwd=self.folder,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                )
        return self

    def _fresh_container(self, name):
        base = self.folder / name
        for gone in ("input", "output", "model"):
            shutil.rmtree(base / gone, ignore_errors=True)
        for empty in ("output", "model"):
            (base / empty).mkdir()
        environ = OptMl(base).host(name, *self.names, current_instance_type="local").hyperparameters().environ()
        return {**environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT), "SM_NUM_GPUS": "0"}

    def wait_for_step(self, step, timeout=120.0):
        """Wait until rank zero has done this step in this attempt; return false where the job ended before."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            if max(self.steps(), default=0) >= step:
                return True
            if all(process.poll() is not None for process in self.running):
                return False
            time.sleep(0.005)
        raise TimeoutError(f"step {step} was not reached in {timeout} s\n{self.output[-3000:]}")

    def kill_rank(self, rank):
        """SIGKILL one rank."""
        pids = {line["rank"]: line["pid"] for line in self.lines() if "rank" in line}
        with contextlib.suppress(ProcessLookupError):
            os.kill(pids[rank], signal.SIGKILL)

    def kill_host(self, number):
        """SIGKILL everything on one host: workers and guards are in sessions of their own."""
        end_all_with(str(self.folder / self.names[number]))

    def wait(self, timeout):
        """Wait until each host has ended; return the exit codes, ``None`` for one that had not by then."""
        deadline = time.monotonic() + timeout
        codes = []
        for process in self.running:
            try:
                codes.append(process.wait(max(0.05, deadline - time.monotonic())))
            except subprocess.TimeoutExpired:
                codes.append(None)
        return codes

    def end(self):
        """Take all containers away, as the service does when one has ended."""
        end_all_with(str(self.folder))
        for process in self.running:
            process.wait()
        self.running = []

    def sync(self):
        """Bring what rank zero's host has uploaded to every host, as the service does before a restart."""
        for name in self.names[1:]:
            shutil.rmtree(self.checkpoints(name))
            shutil.copytree(self.checkpoints(), self.checkpoints(name))
