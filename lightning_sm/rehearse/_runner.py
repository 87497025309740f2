"""Runs a rehearsal: checks, a virtual environment for the containers, the supervisor of the hosts, results.

The virtual environment has all packages of the Python that runs the rehearsal, which is never changed; the job's
requirements are installed into it. Nothing is left running or on disk.
"""

import contextlib
import dataclasses
import importlib.metadata
import os
import shutil
import signal
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import threading
import venv
from pathlib import Path
from types import FrameType
from typing import Dict, Iterator, List, Optional, Tuple

from lightning_sm.errors import RehearsalError
from lightning_sm.launch import pack_source
from lightning_sm.rehearse._checks import (
    check_entry_point,
    check_port,
    check_software,
    choose_isolation,
    describe_isolation,
    differences,
    namespace_options,
)
from lightning_sm.rehearse._comparison import compare_software, compare_worlds, unused_package
from lightning_sm.rehearse._host_process import kill_marked
from lightning_sm.rehearse._outcome import Outcome
from lightning_sm.rehearse._plan import (
    RehearsalFolder,
    RehearsalPlan,
    container_path,
    create_plan,
    tools_path,
)
from lightning_sm.rehearse._request import Isolation, RehearsalRequest, Sdk
from lightning_sm.rehearse._sdk import write_drivers
from lightning_sm.rehearse._storage import copy_results, download_inputs, upload_results

__all__ = ["create_python_env", "rehearse"]

_REQUIREMENTS = "requirements.txt"
_HOSTNAME_SCRIPT = "start_with_right_hostname.sh"
# AWS's own builds and preloads a library that sets the host name, and starts the toolkit.
_STAND_IN = '#!/usr/bin/env bash\nif [ "$1" = train ]; then train; else "$@"; fi\n'


def create_python_env(request: RehearsalRequest, folder: RehearsalFolder) -> Tuple[str, ...]:
    """Create the environment, install the requirements of the source archive, and return notes for the summary.

    They are installed before the hosts start, which have no route to the internet. ``requirements.txt`` is then removed
    from the archive, unless the source directory is a package, whose ``setup.py`` may read it.

    Raises:
        RehearsalError: They cannot be installed.
    """
    _create_venv(folder.python)
    notes: List[str] = []
    is_needed = any(_HOSTNAME_SCRIPT in word for word in request.command)
    if is_needed and shutil.which(_HOSTNAME_SCRIPT, path=container_path(request, os.environ)) is None:
        _write_script(folder.python / "bin" / _HOSTNAME_SCRIPT, _STAND_IN)
        notes.append(f"{_HOSTNAME_SCRIPT} is a stand-in here, which only starts the toolkit.")
    if request.sdk is not Sdk.V2 or not folder.archive.exists():
        return tuple(notes)
    names = _names(folder.archive)
    if _REQUIREMENTS not in names:
        return tuple(notes)
    if request.code is not None and not (request.code / _REQUIREMENTS).exists():
        # It names the wheel that was made of this package, which the environment has.
        _remove_requirements(folder.archive)
        return tuple(notes)
    if request.install_requirements:
        _install(folder)
        notes.append(
            f"{_REQUIREMENTS} was installed before the hosts started, into a Python environment of the rehearsal's "
            "own; on SageMaker each host installs it, which takes time there."
        )
    else:
        notes.append(f"{_REQUIREMENTS} was not installed (--no-requirements); on SageMaker each host installs it.")
    if "setup.py" not in names or not request.install_requirements:
        _remove_requirements(folder.archive)
    return tuple(notes)


def _create_venv(target: Path) -> None:
    venv.EnvBuilder(with_pip=False, symlinks=True).create(str(target))
    python = target / "bin" / "python"
    known = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # By name, since the default scheme of Debian's Python is another one.
    site = sysconfig.get_path("purelib", "posix_prefix", vars={"base": str(target), "platbase": str(target)})
    # With their own .pth files, so that editable installs are found too.
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in known)
    Path(site, "lightning_sm_rehearsal.pth").write_text(lines, encoding="utf-8")
    # Commands name their Python in their first line: train, torchrun, pip.
    for distribution in importlib.metadata.distributions():
        for command in distribution.entry_points:
            script = target / "bin" / command.name
            if command.group == "console_scripts" and not script.exists():
                module, _, function = command.value.partition("[")[0].strip().partition(":")
                code = f"import importlib, operator, sys\nfound = importlib.import_module({module.strip()!r})\n"
                code += f"sys.exit(operator.attrgetter({function.strip()!r})(found)())\n"
                _write_script(script, f"#!{python}\n{code}")


def _write_script(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    path.chmod(0o755)


def _names(archive: Path) -> Tuple[str, ...]:
    with tarfile.open(str(archive)) as packed:
        return tuple(os.path.normpath(name) for name in packed.getnames())


def _install(folder: RehearsalFolder) -> None:
    source = folder.root / "requirements"
    with tarfile.open(str(folder.archive)) as packed:
        # All of it, since a requirement may be a file beside requirements.txt. It is the user's own archive.
        packed.extractall(str(source))
    done = subprocess.run(
        [str(folder.python / "bin" / "python"), "-m", "pip", "install", "-q", "-r", _REQUIREMENTS],
        cwd=str(source),
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    shutil.rmtree(source, ignore_errors=True)
    if done.returncode != 0:
        lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
        error = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1] if lines else "")
        raise RehearsalError(
            f"pip cannot install {_REQUIREMENTS}: {error}",
            hint="On SageMaker the job would fail too. --no-requirements rehearses without it.",
        )


def _remove_requirements(archive: Path) -> None:
    whole = archive.with_suffix(".whole")
    archive.rename(whole)
    with tarfile.open(str(whole)) as packed, tarfile.open(str(archive), "w:gz", compresslevel=1) as changed:
        for member in packed:
            if os.path.normpath(member.name) != _REQUIREMENTS:
                changed.addfile(member, packed.extractfile(member) if member.isreg() else None)
    whole.unlink()


# A supervisor that is told to stop kills its hosts and ends within a second or two.
_STOP_SECONDS = 20.0


def rehearse(request: RehearsalRequest, *, log_to_stderr: bool = False) -> Outcome:
    """Run a training job on this machine with SageMaker's container software, and return how it ended.

    The job's log lines go to this process's standard output while it runs. SIGTERM and SIGHUP end the rehearsal as
    Ctrl-C does, if this is called in the main thread: once the hosts have started, the outcome is a stopped job.

    It reads this process's environment: ``PATH``; the proxy, certificate, ``AWS_…`` and ``PIP_…`` variables, which the
    containers get; ``AWS_ENDPOINT_URL`` for ``s3://`` folders of a request; ``TMPDIR`` for its temporary folder.

    Args:
        request: The job, from :func:`create_request` or :func:`request_from_body`.
        log_to_stderr: Write the job's log lines to the standard error.

    Raises:
        RehearsalError: The request cannot be rehearsed on this machine, or a host could not be set up. A job that fails
            is an outcome and not an error.
        LaunchError: The source folder cannot be packed.
        KeyboardInterrupt: Ctrl-C, SIGTERM or SIGHUP came before the hosts had started.

    Example::

        from lightning_sm.rehearse import create_request, rehearse

        outcome = rehearse(create_request("train.py", hosts=2, distribution="torch_distributed"))
        assert outcome.exit_code == 0, outcome.failure_reason
        print(outcome.as_text())
    """
    # Around everything, so that a second signal does not leave files behind.
    with _interrupt_on_sigterm():
        folder = RehearsalFolder(Path(tempfile.mkdtemp(prefix="lightning-sm-rehearsal-")).resolve())
        try:
            request = download_inputs(request, folder)
            isolation = _check(request)
            return _run(request, isolation, folder, log_to_stderr)
        finally:
            # What a supervisor that was killed did not end.
            kill_marked(str(folder.root))
            if request.keep:
                shutil.rmtree(folder.keys, ignore_errors=True)
                shutil.rmtree(folder.python, ignore_errors=True)
                # The plan has the containers' variables, AWS_… and PIP_… among them.
                for path in folder.root.glob("*.pickle"):
                    path.unlink()
            else:
                folder.remove()


def _check(request: RehearsalRequest) -> Isolation:
    """Find what is wrong before anything is started, and return the isolation to use."""
    check_entry_point(request)
    check_software(request)
    isolation = choose_isolation(request)
    if not isolation.is_namespaced:
        check_port()
    return isolation


def _run(request: RehearsalRequest, isolation: Isolation, folder: RehearsalFolder, log_to_stderr: bool) -> Outcome:
    stream = sys.stderr if log_to_stderr else sys.stdout
    print(f"isolation: {describe_isolation(isolation)}", file=stream, flush=True)
    folder.shared.mkdir(parents=True, exist_ok=True)
    if request.code is not None and request.sdk is Sdk.V2:
        packed = pack_source(request.code, folder.archive, allowed=request.allow_files)
        print(f"Source of {request.code}: {packed}", file=stream, flush=True)
    elif request.code is not None:
        write_drivers(folder.drivers, request)
    unused = unused_package(request, folder)
    if unused:
        print(f"WARNING: {unused}", file=stream, flush=True)
    notes = create_python_env(request, folder)
    plan = create_plan(request, isolation, os.environ, folder, log_to_stderr=log_to_stderr)
    outcome = _run_supervisor(plan, folder)
    collected = upload_results(request, folder) if request.upload else copy_results(request, folder)
    return dataclasses.replace(
        outcome,
        warnings=(*outcome.warnings, *notes, compare_software(request, folder), *differences(request, isolation)),
        problems=tuple(filter(None, [unused, compare_worlds(plan.request, outcome)])),
        collected=collected,
        kept=str(folder.root) if request.keep else None,
    )


def _run_supervisor(plan: RehearsalPlan, folder: RehearsalFolder) -> Outcome:
    folder.write("plan", plan)
    sys.stdout.flush()
    supervisor = subprocess.Popen(
        _supervisor_command(plan.isolation, folder),
        stdin=subprocess.PIPE,
        # A session of its own: Ctrl-C is for this process, which then asks the supervisor to stop.
        start_new_session=True,
        env=_supervisor_environment(),
    )
    assert supervisor.stdin is not None
    try:
        supervisor.wait()
    except KeyboardInterrupt:
        _stop(supervisor)
    except BaseException:
        supervisor.kill()
        supervisor.wait()
        raise
    finally:
        with contextlib.suppress(OSError):
            supervisor.stdin.close()
    result: Dict[str, object] = folder.read("result") or {}
    outcome, error = result.get("outcome"), result.get("error")
    if isinstance(outcome, Outcome):
        return outcome
    if isinstance(error, RehearsalError):
        raise error
    raise RehearsalError(
        f"The supervisor of the hosts was killed (it ended with {supervisor.returncode}).",
        hint="The kernel kills processes when memory runs out: dmesg says so. Try fewer hosts or processes.",
    )


def _supervisor_command(isolation: Isolation, folder: RehearsalFolder) -> Tuple[str, ...]:
    inside = (sys.executable, "-m", "lightning_sm.rehearse._supervisor", str(folder.root))
    options = namespace_options(isolation)
    return ("unshare", *options, "--mount-proc", "--kill-child", *inside) if options else inside


def _supervisor_environment() -> Dict[str, str]:
    # The supervisor imports this very package, wherever this process found it.
    package = str(Path(__file__).resolve().parents[2])
    known = [package, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    path = tools_path(os.environ.get("PATH", os.defpath))
    return {**os.environ, "PYTHONPATH": os.pathsep.join(known), "PATH": path}


def _stop(supervisor: "subprocess.Popen[bytes]") -> None:
    assert supervisor.stdin is not None
    with contextlib.suppress(OSError):
        supervisor.stdin.write(b"s")
        supervisor.stdin.flush()
    try:
        supervisor.wait(timeout=_STOP_SECONDS)
    except (subprocess.TimeoutExpired, KeyboardInterrupt):
        supervisor.kill()
        supervisor.wait()


@contextlib.contextmanager
def _interrupt_on_sigterm() -> Iterator[None]:
    """Raise KeyboardInterrupt at SIGTERM and SIGHUP. Only the main thread may set a handler."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def interrupt(number: int, frame: Optional[FrameType]) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
