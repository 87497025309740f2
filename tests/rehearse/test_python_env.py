"""The Python of the containers: requirements, and that the user's own stays as it is."""

import importlib.metadata
import importlib.util
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Callable, Tuple

import pytest

from lightning_sm.launch import pack_source
from lightning_sm.rehearse._comparison import compare_software
from lightning_sm.rehearse._plan import RehearsalFolder
from lightning_sm.rehearse._python_env import _error_of_pip, create_python_env
from tests.helpers.rehearsal import cli_request, needs


def make_wheel(folder: Path) -> str:
    """A distribution that nobody has, as a file beside requirements.txt; its name."""
    name = "rehearsed_extra-1.0-py3-none-any.whl"
    files = {
        "rehearsed_extra.py": "here = __file__\n",
        "rehearsed_extra-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: rehearsed-extra\nVersion: 1.0\n",
        "rehearsed_extra-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    with zipfile.ZipFile(folder / name, "w") as wheel:
        for path, text in files.items():
            wheel.writestr(path, text)
        wheel.writestr("rehearsed_extra-1.0.dist-info/RECORD", "".join(f"{path},,\n" for path in files))
    return name


@pytest.fixture
def with_requirements(source: Path) -> Path:
    source.joinpath("requirements.txt").write_text(f"./{make_wheel(source)}\n")
    source.joinpath("extra.py").write_text(
        "import rehearsed_extra, sys\nprint('extra ' + rehearsed_extra.here)\nprint('python ' + sys.executable)\n"
    )
    return source


@pytest.fixture
def create(source: Path, tmp_path: Path) -> Callable[..., Tuple[RehearsalFolder, Tuple[str, ...]]]:
    """Return a function that packs the source and makes the environment of a request."""

    def run(*options: str) -> Tuple[RehearsalFolder, Tuple[str, ...]]:
        folder = RehearsalFolder(tmp_path / "with a blank")
        folder.archive.parent.mkdir(parents=True)
        pack_source(source, folder.archive)
        return folder, create_python_env(cli_request(source, *options, "plain.py"), folder)

    return run


def shown(folder: RehearsalFolder, code: str) -> str:
    command = [str(folder.python / "bin" / "python"), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def packed(folder: RehearsalFolder) -> Tuple[str, ...]:
    with tarfile.open(folder.archive) as archive:
        return tuple(archive.getnames())


def test_requirements_go_into_an_environment_of_its_own(with_requirements: Path, create: Callable) -> None:
    folder, (note,) = create()
    assert note.startswith("requirements.txt was installed before the hosts started")
    assert str(folder.python) in shown(folder, "import rehearsed_extra; print(rehearsed_extra.here)")
    # What this Python has is there, editable installs too, and it has not changed.
    assert shown(folder, "import pytest, lightning_sm; print(pytest.__file__)").strip() == pytest.__file__
    assert importlib.util.find_spec("rehearsed_extra") is None
    script = folder.python / "bin" / "pytest"
    assert f'"{folder.python}/bin/python"' in script.read_text()
    assert "pytest" in subprocess.run([script, "--version"], capture_output=True, text=True).stdout
    assert "extra.py" in packed(folder)
    assert "requirements.txt" not in packed(folder)
    folder.remove()
    assert not folder.python.exists()


@pytest.mark.full
def test_a_python_without_pip_as_uv_makes_it(create: Callable, monkeypatch) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "pip" else find(name))
    folder, _ = create()
    assert str(folder.python) in shown(folder, "import pip; print(pip.__file__)")


def test_no_requirements(with_requirements: Path, create: Callable) -> None:
    folder, (note,) = create("--no-requirements")
    assert note.startswith("requirements.txt was not installed (--no-requirements)")
    assert "None" in shown(folder, "import importlib.util; print(importlib.util.find_spec('rehearsed_extra'))")
    assert "requirements.txt" not in packed(folder)


@pytest.mark.parametrize(
    ("image", "told"),
    [
        (
            "1.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.0.1-gpu-py310",
            "has Python 3.10, torch 2.0.1, for GPUs",
        ),
        ("mine/image:1", "brings a Python and torch of its own"),
    ],
)
def test_the_software_is_compared_with_the_images(source: Path, create: Callable, image: str, told: str) -> None:
    text = compare_software(cli_request(source, "--image", image, "plain.py"), create()[0])
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]}, torch {importlib.metadata.version('torch')}" in text
    assert told in text


_GIT = """  error: subprocess-exited-with-error
  x git clone --quiet 'https://****@host/x.git' /tmp/x did not run successfully.
  ╰─> [1 lines of output]
      fatal: unable to access 'https://token@host/x.git/': Failed to connect to host
      [end of output]

  note: This error originates from a subprocess, and is likely not a problem with pip.
error: subprocess-exited-with-error
╰─> See above for output.

note: This error originates from a subprocess, and is likely not a problem with pip.
"""
_BUILD = """      error: command 'gcc' failed: No such file or directory
      [end of output]
  ERROR: Failed building wheel for x
ERROR: Could not build wheels for x
hint: See above for details.
"""


@pytest.mark.parametrize(
    ("output", "told"),
    [
        (_GIT, "fatal: unable to access 'https://***@host/x.git/': Failed to connect to host"),
        (_BUILD, "error: command 'gcc' failed: No such file or directory; ERROR: Could not build wheels for x"),
        ("ERROR: No matching distribution\n\nnotice\n", "ERROR: No matching distribution"),
        ("killed\n", "killed"),
    ],
)
def test_what_pip_says_of_an_error(output: str, told: str) -> None:
    assert _error_of_pip(output) == told


@pytest.mark.full
@needs("loopback")
def test_requirements_that_cannot_be_had(rehearse, source: Path) -> None:
    source.joinpath("requirements.txt").write_text("./no-such-file-1.0-py3-none-any.whl\n")
    done = rehearse("--isolation", "loopback", "plain.py", exit_code=2)
    assert "pip cannot install requirements.txt: ERROR: " in done.log
    assert "--no-requirements" in done.log


@pytest.mark.full
@needs("netns")
def test_a_job_with_requirements(rehearse, with_requirements: Path) -> None:
    # AWS's images are started by a script of theirs.
    done = rehearse("--isolation", "netns", "--image", "pytorch-2.8-cpu", "extra.py")
    assert "-python/lib/python" in done.log.partition("extra ")[2]
    assert "-python/bin/python" in done.log.partition("] python ")[2]
    told = "\n".join(done.summary["warnings"])
    assert "start_with_right_hostname.sh is a stand-in" in told
    assert "the image has Python 3.12, torch 2.8" in told


@pytest.mark.full
@needs("loopback")
def test_a_source_folder_that_is_a_package_is_not_installed_into_the_users_python(rehearse, source: Path) -> None:
    source.joinpath("setup.py").write_text(
        "from setuptools import setup\nsetup(name='rehearsed-package', version='1', py_modules=['plain'])\n"
    )
    # Without an index it cannot be built, so that only where pip would put it is tested.
    done = rehearse("--isolation", "loopback", "plain.py", exit_code=1, PIP_NO_INDEX="1", PIP_USE_PEP517="1")
    listed = subprocess.run([sys.executable, "-m", "pip", "list"], capture_output=True, text=True, check=True)
    assert "rehearsed-package" not in listed.stdout
    assert "-python/bin/python -m pip install ." in done.log
