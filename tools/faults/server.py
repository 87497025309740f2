"""Starts processes by forking from one that has imported torch and Lightning, so that a start costs milliseconds.

What is forked is otherwise as a new program: it has a session, variables, a directory and output of its own, imports
``lightning_sm`` itself, and ends as an interpreter ends. The server imports nothing of ``lightning_sm``, which keeps
values of the process that imports it.
"""

import ctypes
import gc
import json
import logging
import os
import runpy
import select
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from tests.helpers.accelerator import ON_GPU

__all__ = ["Server", "Started"]

# What a fit imports late.
_MODULES = (
    "numpy",
    "torch",
    "torch._dynamo",
    "torch.distributed.algorithms.ddp_comm_hooks",
    "torch.distributed.elastic.multiprocessing.errors",
    "torch.nn.parallel",
    "torch.optim.swa_utils",
    "torch.utils.data.distributed",
    "torchmetrics",
)


# How the kernel names what follows: linux/sched.h, linux/mount.h.
_NEW_MOUNTS, _BIND, _PRIVATE = 0x00020000, 0x1000, 0x44000


class Server:
    """The side of those who want processes.

    Args:
        namespace: Lightning's.
        path: For ``PYTHONPATH``.
        modules: What else is imported before the first fork.
    """

    def __init__(self, namespace, path, modules=()):
        self._lock = threading.Lock()
        self._process = subprocess.Popen(
            [sys.executable, "-m", __name__, namespace, *modules],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # With more threads, those would be there before the first fork.
            env={**os.environ, "PYTHONPATH": str(path), "OMP_NUM_THREADS": "1"},
            text=True,
        )
        self._answer()

    def start(self, module, arguments, *, environ, folder, log, code, bind=None):
        """Run a module as ``python -m`` does, with ``code`` as the file for its exit code.

        With ``bind``, a pair of folders, the process sees the first in place of the second.
        """
        request = {"module": module, "arguments": arguments, "environ": environ}
        request["bind"] = None if bind is None else [str(path) for path in bind]
        request.update(folder=str(folder), log=str(log), code=str(code))
        with self._lock:
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
            return Started(self._answer(), Path(code))

    def end(self):
        """End the server; what it has started is left alone."""
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()

    def _answer(self):
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the server of processes ended with {self._process.wait()}")
        return int(line)


class Started:
    """A process of the server, asked as a ``Popen`` is."""

    def __init__(self, pid, code):
        self.pid = pid
        self._code = code

    def poll(self):
        """Its exit code, negative after a signal; ``None`` while it runs."""
        try:
            return int(self._code.read_text())
        except FileNotFoundError:
            return None

    def wait(self, timeout):
        """Its exit code; ``None`` where it runs longer."""
        deadline = time.monotonic() + timeout
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.005)
        return self.poll()

    def signal(self, number):
        """Send it a signal, if it still runs."""
        if self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended since
                os.kill(self.pid, number)


def _serve(namespace, *modules):
    """Fork for each request, until there are no more; return the request in the process that was forked."""
    # Lightning's import asks for GPUs, after which CUDA works in no process that is forked.
    if not ON_GPU:
        _import(namespace, *modules)
    reading, waking = os.pipe()
    os.set_blocking(waking, False)
    signal.set_wakeup_fd(waking)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    tasks = len(os.listdir("/proc/self/task"))
    assert tasks == 1, f"{tasks} threads are there before the first fork"
    # What was imported is neither copied nor looked through by the processes that are forked.
    gc.collect()
    gc.freeze()
    codes = {}
    print(os.getpid(), flush=True)
    while True:
        ready, _, _ = select.select([0, reading], [], [])
        if reading in ready:
            os.read(reading, 1000)
            _reap(codes)
        if 0 in ready:
            line = sys.stdin.readline()
            if not line:
                return None
            request = json.loads(line)
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                signal.signal(signal.SIGCHLD, signal.SIG_DFL)
                os.close(reading)
                os.close(waking)
                return request
            codes[pid] = request["code"]
            print(pid, flush=True)


def _import(namespace, *modules):
    # Only GPUs need it, and its bindings complain at the exit about what is frozen afterwards.
    sys.modules["triton"] = None
    logging.getLogger("torch.utils.flop_counter").setLevel(logging.ERROR)
    own = (namespace, f"{namespace}.callbacks", f"{namespace}.strategies", f"{namespace}.loggers")
    for name in (*_MODULES, *own, *modules):
        __import__(name)
    with suppress(ModuleNotFoundError):  # before torch 2.7
        __import__("torch.utils.serialization")


def _reap(codes):
    while codes:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            return
        path = codes.pop(pid)
        code = -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
        if os.path.isdir(os.path.dirname(path)):
            Path(f"{path}.new").write_text(str(code))
            os.replace(f"{path}.new", path)


def _bind(source, target):
    """Let this process and its children see one folder in place of another."""
    libc = ctypes.CDLL(None, use_errno=True)
    for done in (
        libc.unshare(_NEW_MOUNTS),
        libc.mount(None, b"/", None, _PRIVATE, None),
        libc.mount(source.encode(), target.encode(), None, _BIND, None),
    ):
        if done != 0:
            raise OSError(ctypes.get_errno(), f"{source} cannot be mounted at {target}")


def _run(request):
    os.setsid()
    if request["bind"] is not None:
        _bind(*request["bind"])
    os.chdir(request["folder"])
    os.environ.clear()
    os.environ.update(request["environ"])
    for number, path, mode in (
        (0, os.devnull, os.O_RDONLY),
        (1, request["log"], os.O_WRONLY | os.O_CREAT | os.O_APPEND),
    ):
        descriptor = os.open(path, mode)
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.dup2(1, 2)
    sys.argv = [request["module"], *request["arguments"]]
    runpy.run_module(request["module"], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    request = _serve(*sys.argv[1:])
    if request is not None:
        _run(request)
