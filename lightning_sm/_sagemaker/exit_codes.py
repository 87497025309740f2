"""Exit codes of a training process, as shells, launchers and the SageMaker toolkit read them."""

import signal
from typing import Any

__all__ = ["STOPPED", "SUCCESS", "is_success"]

#: The job is ``Completed``; after any other code it is ``Failed``
#: (https://docs.aws.amazon.com/sagemaker/latest/dg/your-algorithms-training-signal-success-failure.html). The toolkit
#: replaces every other code of a script by 1 (``sagemaker_training/trainer.py``).
SUCCESS = 0
#: The program was ended by SIGTERM: 128 plus the number of the signal, as shells count it
#: (https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html). ``entrypoint.sh`` uses the same number.
STOPPED = 128 + int(signal.SIGTERM)


def is_success(code: Any) -> bool:
    """Whether an argument of ``sys.exit`` means no failure; a regular exit after SIGTERM is none either.

    >>> is_success(None), is_success(143), is_success(2), is_success("no data")
    (True, True, False, False)

    Args:
        code: The argument, or the ``code`` of a ``SystemExit``.
    """
    return code in (None, SUCCESS, STOPPED)
