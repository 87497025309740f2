"""What ``import lightning_sm`` adds to an interpreter that does nothing: ``python benchmarks/import_time.py``."""

import sys

from _pairs import compare, wall_seconds

if __name__ == "__main__":
    ours = [sys.executable, "-c", "import sys, lightning_sm; assert 'torch' not in sys.modules"]
    compare(ours, [sys.executable, "-c", "pass"], measure=wall_seconds, runs=21, unit="s")
