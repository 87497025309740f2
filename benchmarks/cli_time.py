"""Seconds from the start of a process to its first optimizer step, over the same project under ``LightningCLI``.

Run ``python benchmarks/cli_time.py [--pairs N]``. Each run is a ``fit`` of two gloo processes under torchrun, and
reports when global rank 0 was through with each phase:

import
  torch, Lightning and all that the program imports; ends when the project's first class is imported
parse
  until the arguments are parsed, and the first object is made of them
rendezvous
  until the other objects and the process group are there, and hooks are called
first batch
  until it is read: the restore, the loops' start and the data loaders
first step
  until the optimizer has stepped

Both collect no garbage while they import, and freeze what the imports made, which a plain program could do as well.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from typing import Dict, List, Sequence

from _pairs import compare, parser
from _two_processes import end_process_group, launch

_SCRIPT = os.path.abspath(__file__)
_CONFIG = os.path.join(os.path.dirname(_SCRIPT), "project.yaml")
_PHASES = ("import", "parse", "rendezvous", "first batch", "first step")


def _fit_of(which: str) -> None:
    """Run the CLI of this package, or Lightning's."""
    sys.argv = [sys.argv[0], "fit", "--config", _CONFIG, "--trainer.callbacks+=_phases.Phases"]
    sys.argv += ["--trainer.devices=2", "--trainer.strategy=ddp", "--trainer.max_steps=3"]
    if which == "ours":
        from lightning_sm.cli import main

        main()
    else:
        import gc

        gc.disable()
        from pytorch_lightning.cli import LightningCLI

        gc.freeze()
        gc.enable()
        LightningCLI()
    end_process_group()


def _main() -> None:
    given = parser(__doc__).parse_args()
    ends: Dict[str, List[List[float]]] = {"ours": [], "theirs": []}

    def first_step(command: Sequence[str], environ: Dict[str, str]) -> float:
        # LightningCLI writes its config there, and refuses to replace that of another run.
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run(
                command, env=environ, cwd=folder, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
            )
        line = next(line for line in done.stdout.decode().splitlines() if line.startswith('{"phases"'))
        ends[command[-1]].append(json.loads(line)["phases"])
        return ends[command[-1]][-1][-1]

    ours, theirs = ([*launch(_SCRIPT), "worker", which] for which in ("ours", "theirs"))
    compare(ours, theirs, measure=first_step, unit="s to the first step", pairs=given.pairs)
    for which, runs in ends.items():
        spans = [[end - start for start, end in zip([0.0, *run], run)] for run in runs[1:]]
        medians = {phase: round(statistics.median(each), 3) for phase, each in zip(_PHASES, zip(*spans))}
        print(json.dumps({which: medians}), flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["worker"]:
        _fit_of(sys.argv[2])
    else:
        _main()
