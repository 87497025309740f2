import asyncio
import os
import signal
import sys
import time
from contextlib import suppress
from fnmatch import fnmatchcase
from unittest import mock

import pytest
from hypothesis import HealthCheck, settings

from lightning_sm._failure import stop_watching
from lightning_sm._resume import program
from tests.helpers.environ import without_launcher
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import marked
from tests.helpers.rank_zero import rank_zero_onlys
from tests.helpers.skips import SKIPS, installed_version

# What libraries set for good when they are imported or seeded.
_MAY_STAY = (
    "PL_GLOBAL_SEED",
    "PL_SEED_WORKERS",
    "KMP_",
    "CUDA_",
    "TORCHINDUCTOR_",
    "TRITON_",
    "PYTEST_",
    "COV_",
    "PYTORCH_NVML_",
    "OMP_NUM_",
    "LIGHTNING_SM_RANK_PROCESS",  # tells the processes that a rank starts from ranks
    "LIGHTNING_SM_TRAINING_PROCESS",
)
# How fast values are made depends on what else the machine does, and says nothing about our code.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

# Of several workers of pytest-xdist; their controller looks for what all of them left behind.
_IS_WORKER = "PYTEST_XDIST_WORKER" in os.environ
# What is started inherits it, and so is known by it however far from its parent it has gone.
_RUN = "LIGHTNING_SM_TEST_RUN"
if not _IS_WORKER:
    os.environ[_RUN] = str(os.getpid())
# Helpers that end with this process: Python's own, those that compile for torch, and Open MPI's, which Lightning starts
# where mpi4py is installed.
_END_WITH_IT = (
    "multiprocessing.resource_tracker",
    "multiprocessing.forkserver",
    "torch/_inductor/compile_worker",
    "--singleton-died-pipe",
)
# A guard, or a launcher that ends its workers, needs a moment.
_SECONDS = 10.0
_left = []


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session):
    """Fail a run that leaves processes behind, and end them."""
    # Reports of fits that failed in this process are due when it ends, with the folders and streams of tests gone.
    reports = sys.modules.get("lightning_sm._observe.report_writer")
    if reports is not None:
        reports._writers.clear()
    if _IS_WORKER:
        return
    deadline = time.monotonic() + _SECONDS
    while _processes() and time.monotonic() < deadline:
        time.sleep(0.1)
    for pid, command in _processes().items():
        _left.append(f"{pid}: {command}")
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    if _left and session.exitstatus == pytest.ExitCode.OK:
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


def pytest_terminal_summary(terminalreporter):
    """Name what was left."""
    if _left:
        terminalreporter.section("processes that the tests left behind", red=True)
        for line in _left:
            terminalreporter.write_line(line)


def _processes():
    """The command of each running process that this run has started, or that was started by one, by its PID."""
    known = {os.getpid(), *(pid for pid, _ in marked(f"{_RUN}={os.environ[_RUN]}"))}
    parents, commands = {}, {}
    for entry in filter(str.isdigit, os.listdir("/proc") if os.path.isdir("/proc/self") else ()):
        with suppress(OSError):
            with open(f"/proc/{entry}/stat") as stat:
                state, parent = stat.read().rpartition(")")[2].split()[:2]
            with open(f"/proc/{entry}/cmdline", "rb") as cmdline:
                command = cmdline.read().replace(b"\0", b" ").decode(errors="replace").strip()
            if state != "Z" and not any(own in command for own in _END_WITH_IT):
                parents[int(entry)], commands[int(entry)] = int(parent), command
    found = set()
    for pid in parents:
        line = [pid]
        while line[-1] in parents and len(line) < 1000:
            line.append(parents[line[-1]])
        if known.intersection(line):
            found.add(pid)
    return {pid: commands[pid] for pid in found - {os.getpid()}}


def pytest_collection_modifyitems(items):
    """Skip by name what the installed versions cannot pass."""
    for test, distribution, version, reason in SKIPS:
        if installed_version(distribution) < version:
            for item in items:
                if fnmatchcase(item.nodeid, test):
                    item.add_marker(pytest.mark.skip(reason=f"{item.name}: {reason}"))


@pytest.fixture(scope="session", autouse=True)
def few_modules():
    """Hide the tests' modules, of which each save reads the global variables: a program has some, a suite hundreds."""

    own_modules = program.own_modules

    def others(loaded):
        # The library of set-ups is as a project's modules are.
        found = own_modules(loaded)
        return [each for each in found if each.startswith("tests.helpers.setups") or not each.startswith("tests.")]

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(program, "own_modules", others)
        yield


@pytest.fixture(autouse=True)
def clean_process():
    """Start each test outside any job, restore what it changed, and fail it if it left variables or groups behind."""
    with mock.patch.dict(os.environ, without_launcher(os.environ), clear=True):
        before = dict(os.environ)
        ranks = {id(function): getattr(function, "rank", None) for function in rank_zero_onlys()}
        yield
        stop_watching()
        _cancel_requests()
        after = dict(os.environ)
    for function in rank_zero_onlys():
        function.rank = ranks.get(id(function)) or 0  # of one that the test, or Lightning in the test, has loaded
    changed = {name for name in before.keys() | after.keys() if before.get(name) != after.get(name)}
    leaked = {name for name in changed if not name.startswith(_MAY_STAY)}
    distributed = sys.modules.get("torch.distributed")
    has_group = distributed is not None and distributed.is_available() and distributed.is_initialized()
    if has_group:
        distributed.destroy_process_group()
    assert not leaked, f"the test left these variables behind: {sorted(leaked)}"
    assert not has_group, "the test left a process group behind"


def _cancel_requests():
    """End what s3fs still tries again in its thread, between tries by random numbers of the process."""
    loop = getattr(sys.modules.get("fsspec.asyn"), "loop", [None])[0]
    if loop is not None:
        loop.call_soon_threadsafe(lambda: [task.cancel() for task in asyncio.all_tasks(loop)])


@pytest.fixture
def opt_ml(tmp_path):
    """A base directory as SageMaker's ``/opt/ml``, whose files the test writes."""
    return OptMl(tmp_path / "opt-ml")


@pytest.fixture
def container(opt_ml, monkeypatch):
    """A tiny project in a container of SageMaker's, which is the working directory."""
    from tests.projects.container import Container

    return Container(opt_ml, monkeypatch)


@pytest.fixture
def lines():
    """The package's log lines."""
    from tests.projects.container import log_lines

    with log_lines() as found:
        yield found


@pytest.fixture
def one_namespace(monkeypatch):
    """A program imports one Lightning; the process of these tests may have loaded both."""
    from lightning_sm._lightning import Namespace

    for module in ("_trainer_defaults", "_lightning.namespaces"):
        monkeypatch.setattr(f"lightning_sm.{module}.choose_namespace", lambda: Namespace("pytorch_lightning"))


@pytest.fixture
def s3():
    """An S3 server on this machine, which the environment names."""
    from tests.helpers.s3 import s3_server

    with s3_server() as server:
        yield server


@pytest.fixture(scope="module")
def s3_of_module():
    """One for all tests of a module, of what reads and writes by s3fs."""
    from tests.helpers.s3 import s3_server

    pytest.importorskip("s3fs")
    with s3_server() as server:
        yield server


@pytest.fixture
def aws(s3, monkeypatch):
    """An empty account at that server, with the bucket ``bucket``; the value is a boto3 session."""
    import boto3

    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE", "AWS_REGION"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")
    s3.client.create_bucket(Bucket="bucket")
    return boto3.Session()


@pytest.fixture
def in_environ(monkeypatch):
    """Return a function that sets variables for the length of the test."""

    def set_variables(variables):
        for name, value in variables.items():
            monkeypatch.setenv(name, value)

    return set_variables


@pytest.fixture(scope="module")
def ranks(job):
    """What each of the two ranks of the module's job wrote."""
    return job.results(2)
