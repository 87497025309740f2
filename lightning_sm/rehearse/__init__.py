"""A rehearsal of a SageMaker training job on one machine, with SageMaker's real container software.

``lightning-sm rehearse --help`` tells how to use it. In Python: :func:`main`.
"""

from __future__ import annotations

import sys
from typing import Optional, Sequence

from ._arguments import read_arguments
from ._errors import RehearsalError
from ._from_options import request_from_options
from ._logs import TOPOLOGY_MARKER
from ._request import RehearsalRequest
from ._run import check, new_tree, rehearse

__all__ = ["RehearsalError", "RehearsalRequest", "TOPOLOGY_MARKER", "main"]


def main(argv: Optional[Sequence[str]] = None) -> int:
    """Run the command line and return its exit status."""
    options = read_arguments(argv)
    stream = sys.stderr if options.json else sys.stdout
    try:
        request = request_from_options(options)
        isolation = check(request, options.isolation)
        print(f"isolation: {isolation.title}", file=stream, flush=True)
        summary = rehearse(
            request, isolation, new_tree(), stream="stderr" if options.json else "stdout", keep=options.keep
        )
    except RehearsalError as error:
        print(f"lightning-sm rehearse: {error}", file=sys.stderr)
        return 2
    print(summary.as_json() if options.json else summary.as_text(), flush=True)
    return summary.outcome.exit_code
