"""Runs a few lines in a fresh interpreter, because what has been imported cannot be taken back."""

import json
import textwrap

from tests.helpers.processes import run_python

__all__ = ["run_fresh"]

_SAY = "import json\ndef say(*values): print('SAID', json.dumps(values))\n"


def run_fresh(code, **variables):
    """Return what the code handed to ``say(...)``, one list for each call."""
    done = run_python("-c", _SAY + textwrap.dedent(code), **variables)
    return [json.loads(line[5:]) for line in done.stdout.splitlines() if line.startswith("SAID ")]
