"""The command in the folder of the example; the first argument is the folder for results, the others are its words."""

import os
import sys
from pathlib import Path

from tests.helpers.sharded import prepare_deepspeed

if any("deepspeed" in word for word in sys.argv):
    prepare_deepspeed()
folder, words = sys.argv[1], sys.argv[2:]
os.chdir(Path(__file__).parents[2] / "examples" / "transformer")

from lightning_sm.cli import main  # noqa: E402

result = ["--trainer.callbacks+=tests.sharded.cli_strategies.WriteResult", f"--trainer.callbacks.folder={folder}"]
main(["fit", *words, *result])
