"""Starts real processes as SageMaker's launchers do, on this machine, and collects what each wrote."""

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from tests.helpers.accelerator import ON_GPU
from tests.helpers.environ import without_launcher
from tests.helpers.opt_ml import OptMl

__all__ = [
    "Job",
    "ROOT",
    "STANDINS",
    "assert_equal",
    "environ_of",
    "free_port",
    "local_rendezvous",
    "main_host",
    "marked",
    "run_python",
    "server",
    "until",
]

ROOT = Path(__file__).resolve().parents[2]
STANDINS = ROOT / "tests" / "standins"
_GUARD = "lightning_sm._failure.guard"


def assert_equal(found, expected, **tolerance):
    """What a rank wrote are these lists of numbers by these names, in this order."""
    assert list(found) == list(expected)
    for name, numbers in expected.items():
        assert found[name] == pytest.approx(numbers, **tolerance), name


def environ_of(**variables):
    """The variables of a program that imports this package, without those of a launcher of these tests."""
    # One thread each: with more, sums come in another order and weights differ in their last bits.
    own = {"OMP_NUM_THREADS": 1, "PYTHONPATH": ROOT, **variables}
    return {**without_launcher(os.environ), **{name: str(value) for name, value in own.items()}}


def run_python(*words, folder=None, code=0, **variables):
    """Run Python with these words in a folder, see that it ends with this code, if any, and return what it said."""
    command = [sys.executable, *map(str, words)]
    environ = environ_of(**variables)
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True, timeout=250, check=False)
    assert code in (None, done.returncode), done.stderr[-6000:]
    return done


def free_port():
    """A TCP port of this machine that nobody has taken."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def until(condition, seconds=20.0):
    """Wait until a function returns true."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.01)


@contextlib.contextmanager
def server(command, url, log=subprocess.DEVNULL, **options):
    """Run a server, from when it answers at this address on, with the processes that it starts."""
    with subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True, **options) as process:
        try:
            until(lambda: _answers(process, url), 120)
            yield
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def _answers(process, url):
    assert process.poll() is None, f"{process.args} did not start"
    with contextlib.suppress(OSError), urllib.request.urlopen(url, timeout=5):
        return True
    return False


def main_host():
    """The variables of the main host, for processes that stand for those of several hosts."""
    # Not 127.0.0.1, which among several hosts no job can mean.
    return {"MASTER_ADDR": "127.0.0.2", "MASTER_PORT": str(free_port())}


def local_rendezvous():
    """Words for torchrun on one machine; its ``--standalone`` takes a fixed port up to torch 1.13."""
    return ["--master_addr", "127.0.0.1", "--master_port", str(free_port())]


class Job:
    """A script on several "hosts", each with a base directory of its own, and its results.

    The script gets the folder for its results as its first argument, and writes ``rank-N.json`` there. It may be a
    module's name, whose ``main`` gets the arguments and returns the result.
    """

    def __init__(self, folder, script, *arguments, timeout=150, path=(), **variables):
        self.folder = Path(folder)
        self.folder.mkdir(parents=True, exist_ok=True)
        program = [script] if os.path.exists(script) else ["-m", "tests.helpers.rank", script]
        self.command = [*map(str, (*program, self.folder, *arguments))]
        self.timeout = timeout
        self.variables = environ_of(PYTHONPATH=os.pathsep.join([str(ROOT), *map(str, path)]), **variables)
        # By this the processes are found that are in no group of the job: torchrun's workers, guards.
        self.variables["TESTS_JOB"] = f"{os.getpid()}-{self.folder}"

    def plain(self):
        """Without any launcher and outside a container: Lightning starts the other processes."""
        return self._finish([([], {})])

    def torchrun(self, nodes, processes, *words):
        """A torchrun on each host, as ``torch_distributed`` has it; further words are torchrun's."""
        if ON_GPU:
            nodes, processes = nodes * processes, 1
        rendezvous = local_rendezvous()
        start = ["-m", "torch.distributed.run", "--nnodes", str(nodes), "--nproc_per_node", str(processes), *words]
        hosts = self._hosts(nodes)
        return self._finish([([*start, *rendezvous, "--node_rank", str(i)], host) for i, host in enumerate(hosts)])

    def mpirun(self, processes):
        """One mpirun for all, as ``mpi`` has it."""
        mpirun = shutil.which("mpirun")
        if mpirun is None:
            pytest.skip("mpirun is not installed (Debian: openmpi-bin)")
        if ON_GPU:
            pytest.skip("one GPU is for one process of a host")
        (host,) = self._hosts(1)
        start = [mpirun, "-np", str(processes), "--allow-run-as-root", "--oversubscribe", sys.executable]
        return self._finish([(start, {**host, **main_host()})], python=False)

    def one_per_host(self, hosts):
        """One process on each host, as a job without ``distribution`` has it."""
        main = main_host()
        return self._finish([([], {**host, **main}) for host in self._hosts(hosts)])

    def _hosts(self, count):
        names = [f"algo-{number + 1}" for number in range(count)]
        return [OptMl(self.folder / name).host(name, *names).environ(NCCL_HOSTID=name) for name in names]

    def _finish(self, starts, python=True):
        running = []
        for index, (start, variables) in enumerate(starts):
            command = [sys.executable, *start] if python else start
            with open(self.folder / f"log-{index}.txt", "wb") as log:
                running.append(
                    subprocess.Popen(
                        [*command, *self.command],
                        env={**self.variables, **variables},
                        cwd=self.folder,
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        stdin=subprocess.DEVNULL,
                        start_new_session=True,
                    )
                )
        deadline = time.monotonic() + self.timeout
        try:
            self.codes = [process.wait(max(0.1, deadline - time.monotonic())) for process in running]
        except subprocess.TimeoutExpired:
            self.codes = [None]
        finally:
            _end_all(running, f"TESTS_JOB={self.variables['TESTS_JOB']}")
        self.output = "\n".join(path.read_text(errors="replace") for path in sorted(self.folder.glob("log-*.txt")))
        return self

    def results(self, count):
        """What each rank wrote, after a good end of all."""
        assert set(self.codes) == {0}, f"exit codes {self.codes}\n{self.output[-6000:]}"
        found = {path.name: json.loads(path.read_text()) for path in self.folder.glob("rank-*.json")}
        assert sorted(found) == sorted(f"rank-{rank}.json" for rank in range(count)), self.output[-6000:]
        return [found[f"rank-{rank}.json"] for rank in range(count)]


def _end_all(running, mark):
    """End what is left of a job, also what is in a session of its own."""
    for process in running:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    _kill(pid for pid, command in marked(mark) if _GUARD not in command)
    # Guards end by themselves, as in a container, when they have written why their ranks are gone.
    deadline = time.monotonic() + 10
    while marked(mark) and time.monotonic() < deadline:
        time.sleep(0.05)
    _kill(pid for pid, _ in marked(mark))
    for process in running:
        process.wait()


def _kill(pids):
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def marked(variable):
    """The processes that have a variable, ``NAME=VALUE``, from when they were started, each with its command line."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc") else ()):
        with contextlib.suppress(OSError):
            if variable.encode() in Path("/proc", pid, "environ").read_bytes().split(b"\0"):
                found.append((int(pid), Path("/proc", pid, "cmdline").read_bytes().replace(b"\0", b" ").decode()))
    return found
