"""Runs a few lines in a fresh interpreter, because what has been imported cannot be taken back."""

import json
import os
import subprocess
import sys
import textwrap

from tests.helpers.environ import without_launcher

__all__ = ["run_fresh"]

_SAY = "import json\ndef say(*values): print('SAID', json.dumps(values))\n"


def run_fresh(code, **variables):
    """Return what the code handed to ``say(...)``, one list for each call."""
    done = subprocess.run(
        [sys.executable, "-c", _SAY + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        env={**without_launcher(os.environ), **variables},
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("SAID ")]
