"""The documented rehearsal, word for word."""

import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.helpers.environ import without_launcher
from tests.helpers.rehearsal import needs

pytestmark = [pytest.mark.rehearsal, pytest.mark.processes]

_ROOT = Path(__file__).parents[2]


def _words():
    section = (
        (_ROOT / "docs" / "rehearse.md").read_text(encoding="utf-8").partition("## Rehearse a job on one machine")[2]
    )
    snippet = re.search(r"```(?:bash)?\n(lightning-sm rehearse .*?)```", section, re.DOTALL)
    return shlex.split(snippet[1].replace("\\\n", " "))


@needs("loopback", torch=True)
def test_it_runs_as_it_stands(tmp_path):
    """In a clone where it names the examples, else in a project with a train.py and a folder of data."""
    name, *words = _words()
    assert name == "lightning-sm"
    folder = _ROOT
    if not any(word.startswith("examples/") for word in words):
        folder = tmp_path / "project"
        shutil.copytree(_ROOT / "tests" / "projects" / "tiny", folder, ignore=shutil.ignore_patterns("__pycache__"))
        (folder / "own_cli.py").replace(folder / "train.py")
        (folder / "data").mkdir()
        (folder / "data" / "samples").write_text("")
    done = subprocess.run(
        [sys.executable, "-m", "lightning_sm", *words],
        cwd=folder,
        env={**without_launcher(os.environ), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Topology that each rank resolved:" in done.stdout
    assert "model.tar.gz: model.pt" in done.stdout
