"""Rehearsals in processes of their own, requests from command lines, and what this machine lacks, as skips."""

import functools
import importlib.metadata
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

import pytest

from lightning_sm.rehearse import Isolation, RehearsalRequest
from lightning_sm.rehearse._checks import namespace_options, probe_isolation
from lightning_sm.rehearse._command import read_arguments
from tests.helpers.environ import without_launcher

__all__ = ["Rehearsed", "cli_request", "command_line", "needs", "no_netem", "processes_with", "run_rehearsal"]


class Rehearsed:
    """How a rehearsal ended: its summary, its log, and what its ranks wrote."""

    def __init__(self, done: "subprocess.CompletedProcess[bytes]") -> None:
        self.log = done.stderr.decode(errors="replace")
        self.summary: Dict[str, Any] = json.loads(done.stdout) if done.stdout else {}

    @property
    def ranks(self) -> Dict[str, Any]:
        """What each rank wrote into ``output/data/HOST-LOCAL_RANK.json``."""
        with tarfile.open(Path(self.summary["collected"], "output.tar.gz")) as packed:
            names = [name for name in packed.getnames() if name.startswith("algo-")]
            return {Path(name).stem: json.load(packed.extractfile(name)) for name in names}

    def on(self, host: str) -> List[Any]:
        """What the ranks of a host wrote, by local rank."""
        return [written for name, written in sorted(self.ranks.items()) if name.startswith(f"{host}-")]

    @property
    def topologies(self) -> List[Any]:
        """What each rank printed before it joined, as the summary has it: host and content."""
        return [(host["host"], each) for host in self.summary["hosts"] for each in host["topologies"]]


def command_line(source: Path, *arguments: object) -> List[str]:
    """The command that rehearses a program of this folder."""
    command = (sys.executable, "-m", "lightning_sm", "rehearse", "--source-dir", source, "--env", "OMP_NUM_THREADS=1")
    return [str(each) for each in (*command, *arguments)]


def run_rehearsal(command: Sequence[str], *, exit_code: int = 0, timeout: float = 170, **variables: str) -> Rehearsed:
    """Run a command line with ``--json`` to its end, which has this exit code."""
    environ = {**without_launcher(dict(os.environ)), **variables}
    done = subprocess.run(command, capture_output=True, env=environ, timeout=timeout, check=False)
    assert done.returncode == exit_code, done.stderr.decode(errors="replace")[-8000:]
    return Rehearsed(done)


def cli_request(source: Path, *arguments: object) -> RehearsalRequest:
    """The request that a command line describes."""
    return read_arguments(["--source-dir", str(source), *map(str, arguments)])[0]


_unavailable = functools.lru_cache(maxsize=None)(probe_isolation)


@functools.lru_cache(maxsize=None)
def no_netem(isolation: Isolation) -> Optional[str]:
    """Why hosts cannot have ``--latency`` here; ``None`` when they can."""
    trial = ("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms")
    command = ["unshare", *namespace_options(isolation), *trial]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stderr if done.returncode else None


def needs(
    isolation: Isolation = "loopback", *, mpi: bool = False, torch: bool = False, v3: bool = False, netem: bool = False
) -> pytest.MarkDecorator:
    """Skip unless the machine can rehearse so."""
    reason = _unavailable(isolation)
    if reason is not None:
        return pytest.mark.skip(reason=f"{isolation}: {reason}")
    if netem and no_netem(isolation) is not None:
        return pytest.mark.skip(reason=f"no netem: {no_netem(isolation)}")
    modules = ["sagemaker_training", "sagemaker_pytorch_container"] + ["mpi4py"] * mpi
    modules += ["torch", "lightning", "pytorch_lightning"] * torch
    missing = [name for name in modules if importlib.util.find_spec(name) is None]
    commands = ["mpirun", "ssh-keygen"] if mpi else []
    missing += [name for name in commands if shutil.which(name) is None]
    if mpi and shutil.which("sshd", path="/usr/sbin:/usr/bin") is None:
        missing.append("sshd")
    if v3:
        try:
            importlib.metadata.distribution("sagemaker-train")
        except importlib.metadata.PackageNotFoundError:
            missing.append("sagemaker-train")
    return pytest.mark.skipif(bool(missing), reason=f"not installed: {', '.join(missing)}")


def processes_with(text: str) -> List[str]:
    """The command lines of processes that have this in them."""
    listed = subprocess.run(["ps", "-A", "-ww", "-o", "args="], stdout=subprocess.PIPE, text=True, check=True).stdout
    return [line for line in listed.splitlines() if text in line]
