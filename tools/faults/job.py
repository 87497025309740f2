"""The job under attack: real processes over SageMaker's files, one folder for each host."""

import contextlib
import itertools
import json
import os
import re
import shutil
import signal
import time
from pathlib import Path
from typing import Any

from tests.helpers.accelerator import ON_GPU
from tests.helpers.environ import torchrun, without_launcher
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import main_host
from tools import ROOT
from tools.faults.damage import digest, load
from tools.faults.programs import PARTS

__all__ = ["Job"]


class Job:
    """A job whose containers come and go. What survives them is the folder ``checkpoints`` of each host, as with S3.

    Args:
        server: Starts its processes.
        folder: An empty one.
        setup: The name of what it trains.
        hosts: How many hosts. With several, nothing but their files tells a process its rank.
        processes: How many processes on each host; several get their ranks as from torchrun.
        options: The group ``sagemaker``.
        ballast: Megabytes by which each checkpoint and model is larger.
        strategy: A kind of sharded strategy. Several hosts then write into their own folders, each of which its
            processes see under one path, as in containers.
    """

    def __init__(self, server, folder, setup, hosts, processes, options, ballast=0, strategy=""):
        assert hosts == 1 or processes == 1
        self.server = server
        self.folder = Path(folder)
        self.names = [f"algo-{number + 1}" for number in range(hosts)]
        self.ranks = [(name, local) for name in self.names for local in range(processes)]
        #: A part of the name of each program, in their order.
        self.parts = PARTS.get(setup, ("",))
        self.module = "tools.faults.entry" if setup in PARTS else "tools.faults.train"
        self.strategy = strategy
        self.arguments = [setup, str(folder), json.dumps(options), str(ballast), strategy]
        self.base = self.folder / "opt-ml" if strategy and hosts > 1 else None
        #: For programs that read them.
        self.hyperparameters = {}
        self.attempt, self._launches = 0, itertools.count()
        self.running = []
        for name in self.names:
            self.checkpoints(name).mkdir(parents=True)
        if self.base is not None:
            self.base.mkdir()

    def checkpoints(self, host="algo-1"):
        return self.folder / host / "checkpoints"

    @property
    def prefix(self):
        """The folder that stands for the prefix in S3 to which all hosts upload."""
        return self.folder / "uploaded"

    @property
    def model(self):
        return self.folder / "algo-1" / "model"

    @property
    def results(self):
        """What each fit that has ended in this attempt has ended with."""
        return self._lines("results.jsonl")

    @property
    def output(self):
        logs = sorted(self.folder.glob(f"log-{self.attempt}-*.txt"))
        return "\n".join(path.read_text(errors="replace") for path in logs)

    def files(self):
        """The content of each file of the model directory, without what differs from job to job."""
        found = {}
        for path in sorted(path for path in self.model.rglob("*") if path.is_file()):
            content: Any = path.stat().st_size > 0
            if path.suffix == ".json":
                text = path.read_text().replace(str(self.base or self.model.parent), "/algo-1")
                # Versions of files that were written again.
                content = json.loads(re.sub(r"-v\d+(?=\.ckpt)", "", text.replace(str(self.folder), "")))
            elif path.suffix in (".pt", ".ckpt"):
                content = digest(load(path) or {})
            found[str(path.relative_to(self.model))] = content
        return found

    def told(self):
        """What the processes of this attempt have told."""
        return self._lines("told.jsonl")

    def steps(self):
        """When each step of this attempt was first done, by the number of its fit and its own."""
        times = {}
        for line in self.told():
            if "step" in line:
                times.setdefault((line["fit"], line["step"]), line["time"])
        return times

    def metrics(self):
        """Each value that was logged in any attempt: number of the fit, step, name, value."""
        lines = self._lines("metrics.jsonl")
        return {(fit, step, name, value) for fit, step, values in lines for name, value in values.items()}

    def _lines(self, name):
        path = self.folder / name
        # A line that is being written is not there yet.
        return [json.loads(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []

    def start(self):
        """Start fresh containers with the checkpoints that are there."""
        self.attempt += 1
        for gone in ("told.jsonl", "results.jsonl"):
            (self.folder / gone).unlink(missing_ok=True)
        self._environs = {name: self.fresh_container(name) for name in self.names}
        self._found = {name: self._files(name) for name in self.names}
        return self.launch()

    def launch(self):
        """Start processes in the containers that are there."""
        main = main_host()
        started = next(self._launches)
        for rank, (name, local) in enumerate(self.ranks):
            environ = {**without_launcher(os.environ), **self._environs[name]}
            if len(self.names) == 1 < len(self.ranks):
                environ.update(torchrun(rank, len(self.ranks), local, len(self.ranks), 0))
            if len(self.ranks) > 1:
                environ.update(main)
            self.running.append(
                self.server.start(
                    self.module,
                    self.arguments,
                    environ=environ,
                    folder=self.folder / name,
                    log=self.folder / f"log-{self.attempt}-{rank}.txt",
                    code=self.folder / f"code-{started}-{rank}",
                    bind=None if self.base is None else (self.folder / name, self.base),
                )
            )
        return self

    def fresh_container(self, name):
        """Remove what a container does not survive; return the variables of the next one on this host."""
        base = self.folder / name
        for gone in ("input", "output", "model"):
            shutil.rmtree(base / gone, ignore_errors=True)
        for empty in ("output", "model"):
            (base / empty).mkdir()
        opt_ml = OptMl(base).host(name, *self.names, current_instance_type="local")
        environ = opt_ml.hyperparameters(**self.hyperparameters).environ()
        if self.base is not None:
            environ["SAGEMAKER_BASE_DIR"] = str(self.base)
        gpus = {"SM_NUM_GPUS": str(int(ON_GPU)), "NCCL_HOSTID": name}
        return {**environ, **gpus, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}

    def wait_for(self, is_there, timeout=120.0):
        """Wait until what was told in this attempt satisfies a function; return whether it did before its end."""
        deadline = time.monotonic() + timeout
        while time.monotonic() < deadline:
            ended = all(process.poll() is not None for process in self.running)
            if is_there(self.told()):
                return True
            if ended:
                return False
            time.sleep(0.003)
        raise TimeoutError(f"what was waited for did not come in {timeout:.0f} s")

    def signal(self, number, ranks=None):
        """Send a signal to these ranks, or to all."""
        for rank, process in enumerate(self.running):
            if ranks is None or rank in ranks:
                with contextlib.suppress(ProcessLookupError):
                    process.signal(number)

    def kill_host(self, number):
        """SIGKILL everything on one host."""
        _kill_within(self.folder / self.names[number])

    def wait(self, timeout):
        """Wait until each process has ended; return the exit codes, ``None`` for one that had not by then.

        Where one of several on a host fails, the others get SIGTERM, as from torchrun.
        """
        deadline = time.monotonic() + timeout
        told = len(self.names) > 1
        while time.monotonic() < deadline:
            codes = [process.poll() for process in self.running]
            if None not in codes:
                break
            if any(codes) and not told:
                told = True
                self.signal(signal.SIGTERM)
            time.sleep(0.005)
        return [process.poll() for process in self.running]

    def end(self):
        """Take all containers away, as the service does when one has ended."""
        _kill_within(self.folder)
        for process in self.running:
            process.wait(10)
        self.running = []

    def sync(self):
        """Bring what rank zero's host has uploaded to every host, as the service does before a restart."""
        for name in self.names[1:]:
            shutil.rmtree(self.checkpoints(name))
            shutil.copytree(self.checkpoints(), self.checkpoints(name))

    def upload(self, order):
        """Bring to the prefix what the hosts have changed since they started, as all of them upload to the same.

        What a host has deleted goes first. Of files with the same name that of the last host stays.

        Args:
            order: The names of the hosts, in the order in which they upload.
        """
        self.prefix.mkdir(exist_ok=True)
        for name in order:
            for gone in self._found[name].keys() - self._files(name).keys():
                (self.prefix / gone).unlink(missing_ok=True)
        for name in order:
            for path, state in self._files(name).items():
                if self._found[name].get(path) != state:
                    (self.prefix / path).parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(self.checkpoints(name) / path, self.prefix / path)

    def download(self):
        """Bring what stands under the prefix to every host."""
        for name in self.names:
            shutil.rmtree(self.checkpoints(name))
            shutil.copytree(self.prefix, self.checkpoints(name))

    def _files(self, name):
        """Each file of a host's checkpoints with what changes when it is written again."""
        found = {}
        for path in self.checkpoints(name).rglob("*"):
            if path.is_file():
                state = path.stat()
                found[path.relative_to(self.checkpoints(name))] = (state.st_ino, state.st_mtime_ns, state.st_size)
        return found


def _kill_within(folder):
    """SIGKILL every process whose working directory is in a folder. Workers and guards have sessions of their own."""
    inside = os.path.join(os.path.realpath(folder), "")
    for _ in range(200):
        found = False
        for entry in os.listdir("/proc"):
            with contextlib.suppress(OSError):
                if entry.isdigit() and os.path.join(os.readlink(f"/proc/{entry}/cwd"), "").startswith(inside):
                    os.kill(int(entry), signal.SIGKILL)
                    found = True
        if not found:
            return
        time.sleep(0.005)
