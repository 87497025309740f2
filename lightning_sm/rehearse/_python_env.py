"""The Python of the containers: a virtual environment with all packages of the Python that runs the rehearsal.

That one is never changed: the job's requirements are installed into the environment, before the hosts start, which have
no route to the internet.
"""

import importlib.metadata
import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from typing import List, Tuple

from lightning_sm._failure import redact_patterns
from lightning_sm.errors import RehearsalError
from lightning_sm.rehearse._plan import RehearsalFolder, container_path
from lightning_sm.rehearse._request import RehearsalRequest

__all__ = ["create_python_env"]

_REQUIREMENTS = "requirements.txt"
_HOSTNAME_SCRIPT = "start_with_right_hostname.sh"
# AWS's own builds and preloads a library that sets the host name, and starts the toolkit.
_STAND_IN = '#!/usr/bin/env bash\nif [ "$1" = train ]; then train; else "$@"; fi\n'
# A first line (#!) ends at a blank or after 127 characters: sh starts Python then, to which the second line is a string
# as in pip's own scripts. The entry point knows the toolkit by the name of its process, which is Python's then.
_MAX_FIRST_LINE = 127
_BY_SHELL = "#!/bin/sh\n'''exec' \"{python}\" \"$0\" \"$@\"\n' '''\n"
# Where the toolkit and SDK v3's driver look for torchrun.
_AGENT = "from lightning_sm.rehearse._hyperpodrun import main\n\nmain()\n"


def create_python_env(request: RehearsalRequest, folder: RehearsalFolder) -> Tuple[str, ...]:
    """Create the environment, install the requirements of the source archive, and return notes for the summary.

    ``requirements.txt`` is then removed from the archive, unless the source directory is a package, whose ``setup.py``
    may read it.

    Raises:
        RehearsalError: They cannot be installed.
    """
    _create_venv(folder.python)
    notes: List[str] = []
    is_needed = any(_HOSTNAME_SCRIPT in word for word in request.command)
    if is_needed and shutil.which(_HOSTNAME_SCRIPT, path=container_path(request, os.environ)) is None:
        _write_script(folder.python / "bin" / _HOSTNAME_SCRIPT, _STAND_IN)
        notes.append(f"{_HOSTNAME_SCRIPT} is a stand-in here, which only starts the toolkit.")
    if request.options.launcher is not None:
        python = folder.python / "bin" / "python"
        _write_script(folder.python / "bin" / "torchrun", _first_lines(python) + _AGENT)
        notes.append("hyperpodrun ran in a SageMaker container, told by a stand-in of HyperPod's operator to start.")
    names: Tuple[str, ...] = ()
    if folder.archive.exists():
        with tarfile.open(str(folder.archive)) as packed:
            names = tuple(os.path.normpath(name) for name in packed.getnames())
    # Else they name only the wheel that was made of this package, which the environment has.
    is_users = request.options.source_dir is None or Path(request.options.source_dir, _REQUIREMENTS).exists()
    if _REQUIREMENTS in names and is_users and request.options.requirements:
        _install(folder)
        notes.append(
            f"{_REQUIREMENTS} was installed before the hosts started, into a Python environment of the rehearsal's "
            "own; on SageMaker each host installs it, which takes time there."
        )
        if "setup.py" in names:
            return tuple(notes)
    elif _REQUIREMENTS in names and is_users:
        notes.append(f"{_REQUIREMENTS} was not installed (--no-requirements); on SageMaker each host installs it.")
    if _REQUIREMENTS in names:
        _remove_requirements(folder.archive)
    return tuple(notes)


def _create_venv(target: Path) -> None:
    # The containers' Python sees the pip of this one, which has none where uv made it.
    venv.EnvBuilder(with_pip=importlib.util.find_spec("pip") is None, symlinks=True).create(str(target))
    python = target / "bin" / "python"
    known = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # By name, since the default scheme of Debian's Python is another one.
    site = sysconfig.get_path("purelib", "posix_prefix", vars={"base": str(target), "platbase": str(target)})
    # With their own .pth files, so that editable installs are found too.
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in known)
    Path(site, "lightning_sm_rehearsal.pth").write_text(lines, encoding="utf-8")
    # Commands name their Python in their first lines: train, torchrun, pip.
    for distribution in importlib.metadata.distributions():
        for command in distribution.entry_points:
            script = target / "bin" / command.name
            if command.group == "console_scripts" and not script.exists():
                found = f"EntryPoint({command.name!r}, {command.value!r}, {command.group!r})"
                code = f"import sys\nfrom importlib.metadata import EntryPoint\n\nsys.exit({found}.load()())\n"
                _write_script(script, _first_lines(python) + code)


def _first_lines(python: Path) -> str:
    line = f"#!{python}\n"
    return _BY_SHELL.format(python=python) if " " in line or len(line) > _MAX_FIRST_LINE else line


def _write_script(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    path.chmod(0o755)


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
        raise RehearsalError(
            f"pip cannot install {_REQUIREMENTS}: {_error_of_pip(done.stdout.decode('utf-8', 'replace'))}",
            hint="On SageMaker the job would fail too. --no-requirements rehearses without it.",
        )


def _error_of_pip(output: str) -> str:
    """What pip says last of an error, behind the last line of a build or of git, where one of them failed."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    inner = [line for line, following in zip(lines, lines[1:]) if following == "[end of output]"]
    errors = [line for line in lines if line.startswith("ERROR:")]
    return redact_patterns("; ".join([*inner[-1:], *errors[-1:]] or lines[-1:]))


def _remove_requirements(archive: Path) -> None:
    whole = archive.with_suffix(".whole")
    archive.rename(whole)
    with tarfile.open(str(whole)) as packed, tarfile.open(str(archive), "w:gz", compresslevel=1) as changed:
        for member in packed:
            if os.path.normpath(member.name) != _REQUIREMENTS:
                changed.addfile(member, packed.extractfile(member) if member.isreg() else None)
    whole.unlink()
