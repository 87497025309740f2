"""The Python of the containers: an environment of the rehearsal's own, in which its requirements are installed.

It sees everything that the Python has with which the rehearsal was started, and whatever a job installs goes into it.
"""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
from pathlib import Path
from typing import List, Tuple

from ._checks import container_path
from ._errors import RehearsalError
from ._request import RehearsalRequest
from ._tree import Tree

__all__ = ["make_python"]

_REQUIREMENTS = "requirements.txt"
_HOSTNAME_SCRIPT = "start_with_right_hostname.sh"
# AWS's own builds and preloads a library that gives the host its name, and starts the toolkit.
_STAND_IN = '#!/usr/bin/env bash\nif [ "$1" = train ]; then train; else "$@"; fi\n'


def make_python(request: RehearsalRequest, tree: Tree) -> Tuple[str, ...]:
    """Make the environment in ``tree.python``, install the requirements of the source archive, and tell what was done.

    They are installed before the hosts start, which have no way out of their network, and are then left out of the
    archive, unless the source directory is a package, whose ``setup.py`` may read the file.

    Raises:
        RehearsalError: They cannot be installed.
    """
    _make_environment(tree.python)
    notes: List[str] = []
    is_asked_for = any(_HOSTNAME_SCRIPT in word for word in request.command)
    if is_asked_for and shutil.which(_HOSTNAME_SCRIPT, path=container_path(request, os.environ)) is None:
        _write_script(tree.python / "bin" / _HOSTNAME_SCRIPT, _STAND_IN)
        notes.append(f"{_HOSTNAME_SCRIPT} is a stand-in here, which only starts the toolkit.")
    if request.sdk != "v2" or not tree.archive.exists():
        return tuple(notes)
    names = _names(tree.archive)
    if _REQUIREMENTS not in names:
        return tuple(notes)
    if request.install_requirements:
        _install(tree)
        notes.append(
            f"{_REQUIREMENTS} was installed before the hosts started, into a Python environment of the rehearsal's "
            "own; on SageMaker each host installs it, which takes its time there."
        )
    else:
        notes.append(f"{_REQUIREMENTS} was not installed (--no-requirements); on SageMaker each host installs it.")
    if "setup.py" not in names or not request.install_requirements:
        _leave_out(tree.archive)
    return tuple(notes)


def _make_environment(folder: Path) -> None:
    venv.EnvBuilder(with_pip=False, symlinks=True).create(str(folder))
    python = folder / "bin" / "python"
    known = [path for path in sys.path if Path(path).name in ("site-packages", "dist-packages")]
    # By name, as Debian's own Python has another scheme by default.
    site = sysconfig.get_path("purelib", "posix_prefix", vars={"base": str(folder), "platbase": str(folder)})
    # With their own .pth files, so that editable installs are seen, too.
    lines = "".join(f"import site; site.addsitedir({path!r})\n" for path in known)
    Path(site, "lightning_sm_rehearsal.pth").write_text(lines, encoding="utf-8")
    # Commands name their Python in their first line: train, torchrun, pip.
    for distribution in importlib.metadata.distributions():
        for command in distribution.entry_points:
            target = folder / "bin" / command.name
            if command.group == "console_scripts" and not target.exists():
                module, _, function = command.value.partition("[")[0].strip().partition(":")
                code = f"import importlib, operator, sys\nfound = importlib.import_module({module.strip()!r})\n"
                code += f"sys.exit(operator.attrgetter({function.strip()!r})(found)())\n"
                _write_script(target, f"#!{python}\n{code}")


def _write_script(path: Path, content: str) -> None:
    path.write_text(content, encoding="utf-8")
    path.chmod(0o755)


def _names(archive: Path) -> Tuple[str, ...]:
    with tarfile.open(str(archive)) as packed:
        return tuple(os.path.normpath(name) for name in packed.getnames())


def _install(tree: Tree) -> None:
    source = tree.root / "requirements"
    with tarfile.open(str(tree.archive)) as packed:
        # The user's own archive, whole, as a requirement may be a file beside requirements.txt.
        packed.extractall(str(source))
    done = subprocess.run(
        [str(tree.python / "bin" / "python"), "-m", "pip", "install", "-q", "-r", _REQUIREMENTS],
        cwd=str(source),
        env={**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1", "PIP_USER": "0"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    shutil.rmtree(source, ignore_errors=True)
    if done.returncode != 0:
        lines = done.stdout.decode("utf-8", "replace").strip().splitlines()
        told = next((line for line in reversed(lines) if line.startswith("ERROR:")), lines[-1] if lines else "")
        raise RehearsalError(
            f"pip cannot install {_REQUIREMENTS}: {told}",
            hint="On SageMaker the job would fail of it, too. --no-requirements rehearses without it.",
        )


def _leave_out(archive: Path) -> None:
    whole = archive.with_suffix(".whole")
    archive.rename(whole)
    with tarfile.open(str(whole)) as packed, tarfile.open(str(archive), "w:gz", compresslevel=1) as changed:
        for member in packed:
            if os.path.normpath(member.name) != _REQUIREMENTS:
                changed.addfile(member, packed.extractfile(member) if member.isreg() else None)
    whole.unlink()
