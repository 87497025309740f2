"""Exit codes of a training process, as shells, launchers and the SageMaker toolkit read them."""

import signal

__all__ = ["STOPPED"]

#: The program was ended by SIGTERM: 128 plus the number of the signal, as shells count it
#: (https://www.gnu.org/software/bash/manual/html_node/Exit-Status.html). ``entrypoint.sh`` uses the same number.
STOPPED = 128 + int(signal.SIGTERM)
