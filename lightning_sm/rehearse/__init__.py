"""A rehearsal of a SageMaker training job on one machine, with SageMaker's real container software.

``lightning-sm rehearse --help`` tells how to use it. In Python: :func:`main`.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Optional, Sequence

from ._arguments import read_arguments
from ._errors import RehearsalError
from ._from_body import read_body, request_from_body
from ._from_options import request_from_options
from ._logs import TOPOLOGY_MARKER
from ._request import RehearsalRequest
from ._run import check, new_tree, rehearse, terminable
from ._s3 import fetch_inputs
from ._summary import Summary

__all__ = ["RehearsalError", "RehearsalRequest", "TOPOLOGY_MARKER", "main"]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit status."""
    options = read_arguments(argv)
    try:
        with terminable():
            summary = _rehearse(options)
    except RehearsalError as error:
        print(f"lightning-sm rehearse: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130
    print(summary.as_json() if options.json else summary.as_text(), flush=True)
    return summary.outcome.exit_code


def _rehearse(options: argparse.Namespace) -> Summary:
    if options.request:
        request = request_from_body(read_body(Path(options.request)), options)
    else:
        request = request_from_options(options)
    tree = new_tree()
    try:
        request = fetch_inputs(request, tree)
        isolation = check(request, options.isolation)
        print(f"isolation: {isolation.title}", file=sys.stderr if options.json else sys.stdout, flush=True)
        return rehearse(request, isolation, tree, stream="stderr" if options.json else "stdout", keep=options.keep)
    finally:
        if not options.keep:
            tree.remove()
