"""``python -m lightning_sm.rehearse``."""

import sys

from lightning_sm.rehearse import main

if __name__ == "__main__":
    sys.exit(main())
