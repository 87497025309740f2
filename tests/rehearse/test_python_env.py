"""The Python of the containers: requirements, entry points of images, and that the user's own stays as it is."""

import dataclasses
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from lightning_sm.launch import pack_source
from lightning_sm.rehearse import Attempt, EndedBy, HostOutcome, Outcome
from lightning_sm.rehearse._comparison import compare_software
from lightning_sm.rehearse._host_process import find_error_line
from lightning_sm.rehearse._plan import RehearsalFolder
from lightning_sm.rehearse._runner import create_python_env
from tests.helpers.rehearsal import cli_request as request
from tests.helpers.rehearsal import needs

ISOLATIONS = [pytest.param(name, marks=needs(name)) for name in ("loopback", "userns", "netns")]


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
        "import sys\n"
        "try: import rehearsed_extra; print('extra ' + rehearsed_extra.here)\n"
        "except ImportError: print('no extra')\n"
        "print('python ' + sys.executable, flush=True)\n"
    )
    return source


def _packed(request_, folder: Path) -> RehearsalFolder:
    pytest.importorskip("pathspec", reason="the extra rehearse is not installed")
    tree = RehearsalFolder(folder / "tree")
    tree.shared.mkdir(parents=True)
    pack_source(request_.code, tree.archive)
    return tree


def _shown(tree: RehearsalFolder, code: str) -> str:
    command = [str(tree.python / "bin" / "python"), "-c", code]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def test_requirements_go_into_an_environment_of_its_own(with_requirements: Path, tmp_path: Path) -> None:
    made = request(with_requirements, "extra.py")
    tree = _packed(made, tmp_path)
    (note,) = create_python_env(made, tree)
    assert note.startswith("requirements.txt was installed before the hosts started")
    assert str(tree.python) in _shown(tree, "import rehearsed_extra; print(rehearsed_extra.here)")
    # What this Python has is there, editable installs too, and it has not changed.
    assert _shown(tree, "import pytest, lightning_sm; print(pytest.__file__)").strip() == pytest.__file__
    assert importlib.util.find_spec("rehearsed_extra") is None
    for command in ("pytest", "pip"):
        assert (tree.python / "bin" / command).read_text().startswith(f"#!{tree.python}/bin/python\n")
    assert (
        "pytest" in subprocess.run([tree.python / "bin" / "pytest", "--version"], capture_output=True, text=True).stdout
    )
    with tarfile.open(tree.archive) as packed:
        assert "extra.py" in packed.getnames()
        assert "requirements.txt" not in packed.getnames()
    tree.remove()
    assert not tree.python.exists()


def test_no_requirements(with_requirements: Path, tmp_path: Path) -> None:
    made = request(with_requirements, "--no-requirements", "extra.py")
    tree = _packed(made, tmp_path)
    (note,) = create_python_env(made, tree)
    assert note.startswith("requirements.txt was not installed (--no-requirements)")
    assert "None" in _shown(tree, "import importlib.util; print(importlib.util.find_spec('rehearsed_extra'))")
    with tarfile.open(tree.archive) as packed:
        assert "requirements.txt" not in packed.getnames()


def test_a_package_keeps_the_file_that_its_setup_may_read(with_requirements: Path, tmp_path: Path) -> None:
    with_requirements.joinpath("setup.py").write_text("")
    made = request(with_requirements, "extra.py")
    tree = _packed(made, tmp_path)
    create_python_env(made, tree)
    with tarfile.open(tree.archive) as packed:
        assert "requirements.txt" in packed.getnames()


@pytest.mark.rehearsal
@needs("loopback")
def test_requirements_that_cannot_be_had(rehearse, source: Path) -> None:
    source.joinpath("requirements.txt").write_text("./no-such-file-1.0-py3-none-any.whl\n")
    done = rehearse("--isolation", "loopback", "plain.py")
    assert done.exit_code == 2
    assert "pip cannot install requirements.txt: ERROR: " in done.log
    assert "--no-requirements" in done.log


@pytest.mark.rehearsal
@pytest.mark.processes
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_a_job_with_requirements(rehearse, with_requirements: Path, isolation: str) -> None:
    done = rehearse("--isolation", isolation, "extra.py")
    assert done.exit_code == 0, done.log
    assert "-python/lib/python" in done.log.partition("extra ")[2]
    assert "-python/bin/python" in done.log.partition("] python ")[2]
    assert importlib.util.find_spec("rehearsed_extra") is None
    assert any("environment of the rehearsal's own" in warning for warning in done.summary["warnings"])


@pytest.mark.rehearsal
@pytest.mark.processes
@needs("loopback")
def test_a_source_folder_that_is_a_package_is_not_installed_into_the_users_python(rehearse, source: Path) -> None:
    source.joinpath("setup.py").write_text(
        "from setuptools import setup\nsetup(name='rehearsed-package', version='1', py_modules=['plain'])\n"
    )
    # It is built without a network, so that only where pip would put it is tested.
    done = rehearse("--isolation", "loopback", "plain.py", PIP_NO_INDEX="1")
    listed = subprocess.run([sys.executable, "-m", "pip", "list"], capture_output=True, text=True, check=True)
    assert "rehearsed-package" not in listed.stdout
    assert "-python/bin/python -m pip install ." in done.log or done.exit_code == 0


@pytest.mark.rehearsal
@pytest.mark.processes
@pytest.mark.parametrize("isolation", ISOLATIONS)
def test_the_start_script_of_awss_images(rehearse, tmp_path: Path, isolation: str) -> None:
    made = subprocess.run(
        [sys.executable, "-m", "lightning_sm", "entrypoint", "--dlc"], capture_output=True, text=True, check=True
    )
    (tmp_path / "entrypoint.json").write_text(made.stdout)
    plain = {"ContainerEntrypoint": ["bash", "-m", "start_with_right_hostname.sh"], "ContainerArguments": ["train"]}
    (tmp_path / "plain.json").write_text(json.dumps(plain))
    for name in ("entrypoint", "plain"):
        done = rehearse("--isolation", isolation, "--entrypoint", tmp_path / f"{name}.json", "plain.py")
        assert done.exit_code == 0, done.log
        assert any("start_with_right_hostname.sh is a stand-in" in warning for warning in done.summary["warnings"])


@pytest.mark.rehearsal
@pytest.mark.processes
@needs("loopback")
def test_an_empty_reason_points_to_the_line_that_tells_more(command, source: Path) -> None:
    source.joinpath("parse.py").write_text(
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--flag', action='store_true')\n"
        "parser.parse_args()\n"
    )
    words = [*command, "--isolation", "loopback", "parse.py", "--flag", "True"]
    done = subprocess.run(words, capture_output=True, text=True, env=dict(os.environ), check=False)
    assert done.returncode == 1
    assert "Last error in the log of 127.0.0.1: parse.py: error: unrecognized arguments: True" in done.stdout


@pytest.mark.parametrize(
    ("texts", "line"),
    [
        (
            ["usage: train.py [-h]", "train.py: error: no", "", "sagemaker-training-toolkit ERROR Reporting"],
            "train.py: error: no",
        ),
        (["ValueError: x", "bye", 'ErrorMessage ""', 'Command "python train.py"', "ExitCode 2"], "ValueError: x"),
        (["no data", "ExecuteUserScriptError:"], "no data"),
        ([" ", "sagemaker-training-toolkit INFO x"], None),
    ],
)
def test_the_line_that_tells_more(texts, line) -> None:
    assert find_error_line(texts) == line


@pytest.mark.parametrize(
    ("reason", "told"),
    [("", True), ('ExecuteUserScriptError:\nExitCode 2\nErrorMessage ""', True), ("ValueError: x", False)],
)
def test_the_summary_points_to_it(reason: str, told: bool) -> None:
    host = HostOutcome("algo-1", "g", 2, 1.0, failure=reason, error_line="no data")
    text = Outcome((Attempt((host,), EndedBy.EXIT, 1.0),)).as_text()
    assert ("  Last error in the log of algo-1: no data" in text.splitlines()) is told


@pytest.mark.parametrize(
    ("image", "words"),
    [
        ("1.dkr.ecr.us-east-1.amazonaws.com/pytorch-training:2.0.1-gpu-py310", "has Python 3.10, torch 2.0, for GPUs"),
        ("mine/image:1", "brings a Python and torch of its own"),
    ],
)
def test_the_software_is_compared_with_the_images(source: Path, tmp_path: Path, image: str, words: str) -> None:
    made = request(source, "plain.py")
    tree = _packed(made, tmp_path)
    create_python_env(made, tree)
    text = compare_software(dataclasses.replace(made, image=image), tree)
    assert f"Python {sys.version_info[0]}.{sys.version_info[1]}, torch {importlib.metadata.version('torch')}" in text
    assert words in text


def test_the_hint_for_a_usage_error_names_our_cli() -> None:
    texts = ["usage: main.py {fit}", 'error: Key "model": no.', "  Error in class Net", "ExitCode 2"]
    line = find_error_line(texts)
    host = HostOutcome("algo-1", "g", 1, 1.0, failure='ErrorMessage ""', error_line=line)
    text = Outcome((Attempt((host,), EndedBy.EXIT, 1.0),)).as_text()
    assert '  Last error in the log of algo-1: error: Key "model": no.\n  HINT: ' in text
    assert "lightning_sm.cli" in text
