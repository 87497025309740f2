"""Programs for those who work on the package, each run as ``python -m tools.NAME``: docs, faults, matrix, peers.

They may import ``tests.helpers`` and ``tests.standins``, which they share with the tests, and no test.
"""

from pathlib import Path

#: The repository's root.
ROOT = Path(__file__).resolve().parents[1]
