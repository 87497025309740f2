"""The commands and the program of the page on rehearsals, as they stand."""

import os
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT, blocks
from tests.helpers.environ import without_launcher
from tests.helpers.rehearsal import needs

pytestmark = pytest.mark.full

_PAGE = ROOT / "docs" / "rehearse.md"


def _commands():
    first, second = blocks(_PAGE, "bash")
    (program,) = (block for block in blocks(_PAGE, "python") if "create_request" in block)
    # The others go on in the project that the first one makes.
    project = first.partition("lightning-sm rehearse")[0]
    return {
        "first": first,
        "request": project + second,
        "python": f"{project}{sys.executable} - <<'END'\n{program}\nEND\n",
    }


@pytest.mark.parametrize("name", ["first", "request", "python"])
@needs("loopback", torch=True)
def test_it_runs_as_it_stands(name, tmp_path):
    script = tmp_path / "lightning-sm"
    script.write_text(f'#!/bin/sh\nexec {sys.executable} -m lightning_sm "$@"\n')
    script.chmod(0o755)
    done = subprocess.run(
        ["bash", "-euc", _commands()[name]],
        cwd=tmp_path,
        env={
            **without_launcher(os.environ),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{tmp_path}{os.pathsep}{os.environ['PATH']}",
            "TMPDIR": str(tmp_path),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "model.tar.gz: model.pt" in done.stdout
    if name == "request":
        assert list(tmp_path.glob("lightning-sm-results-*/model.tar.gz"))
    else:
        assert "Topology that each rank resolved:" in done.stdout
