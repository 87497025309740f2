"""What ``import lightning_sm`` adds to an interpreter that does nothing.

Run ``python benchmarks/import_time.py [--cpu] [--pairs N]``: the time until it returns, or the CPU time.
"""

import sys

from _pairs import compare, cpu_seconds, parser, wall_seconds

if __name__ == "__main__":
    words = parser(__doc__)
    words.add_argument("--cpu", action="store_true", help="compare CPU time, which other programs disturb less")
    given = words.parse_args()
    measure, unit = (cpu_seconds, "s of CPU time") if given.cpu else (wall_seconds, "s")
    ours = [sys.executable, "-c", "import sys, lightning_sm; assert 'torch' not in sys.modules"]
    compare(ours, [sys.executable, "-c", "pass"], measure=measure, unit=unit, pairs=given.pairs, default=21)
