"""The second program of the entry point of ``processes``."""

import sys

from tools.faults.train import main

if __name__ == "__main__":
    main(*sys.argv[1:], part="finetune")
