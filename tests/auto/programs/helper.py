"""A rank whose helper process makes a Trainer of its own, before the rank's Trainer and after it."""

import json
import subprocess
import sys

from seen import arguments, of_trainer, write

folder, pl = arguments()

from tests.helpers.tiny import loader, tiny_model, weights  # noqa: E402

_HELPER = f"""
import json, sys
import {pl.__name__} as pl
from tests.helpers.tiny import loader, tiny_model
trainer = pl.Trainer(max_epochs=1, devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False)
trainer.fit(tiny_model(pl), loader())
modules = [name for name in sys.modules if name.startswith("lightning_sm.")]
print("SEEN", json.dumps([trainer.world_size, modules]))
"""


def run_helper():
    done = subprocess.run([sys.executable, "-c", _HELPER], capture_output=True, text=True, check=False)
    lines = [line[5:] for line in done.stdout.splitlines() if line.startswith("SEEN ")]
    is_told = "leaves this process alone" in done.stderr
    return [*json.loads(lines[0]), is_told] if lines else done.stderr


before = run_helper()
trainer = pl.Trainer(max_epochs=1, logger=False)
model = tiny_model(pl)
trainer.fit(model, loader())
write(folder, trainer.global_rank, helpers=[before, run_helper()], weights=weights(model), **of_trainer(trainer))
