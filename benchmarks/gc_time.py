"""CPU time of a short ``fit`` with ``gc.freeze`` after the imports and without it.

Run ``python benchmarks/gc_time.py [--pairs N]``.

Both sides disable garbage collection while they import torch and Lightning.
"""

import os
import sys

from _pairs import compare, cpu_seconds, parser

_OURS = "from lightning_sm.cli import main; main()"
_WITHOUT = f"import gc; gc.freeze = lambda: None; {_OURS}"

if __name__ == "__main__":
    given = parser(__doc__).parse_args()
    fit = ["fit", "--config", os.path.join(os.path.dirname(os.path.abspath(__file__)), "project.yaml")]
    ours, without = ([sys.executable, "-c", code, *fit] for code in (_OURS, _WITHOUT))
    compare(ours, without, measure=cpu_seconds, unit="s of CPU time", pairs=given.pairs)
