"""Trains a set-up or a program of the library and writes down what happens, in pauses long enough to be killed in.

Arguments: the set-up's name, the folder for what is told, the options of ``sagemaker`` as JSON, megabytes of ballast,
the kind of strategy.
"""

import json
import os
import random
import re
import sys
import time
from pathlib import Path

import numpy
import torch

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from lightning_sm._sagemaker.job import TrainingJob
from tests.helpers.accelerator import ACCELERATOR
from tests.helpers.forks import pause_before_forks
from tests.helpers.setups import Size
from tests.helpers.sharded import gathered_weights, shard_by_layers, strategy_of
from tools.faults.damage import digest
from tools.faults.plan import LIBRARY
from tools.faults.programs import PARTS, PROGRAMS

pl = installed_namespaces()[0].module()

EPOCHS, BATCHES = 4, 12
# Each save of a sharded strategy takes longer.
SHARDED_EPOCHS, SHARDED_BATCHES = 3, 8

# Seconds, for each training batch, each validation batch and each file that is written.
PAUSE, VALIDATION_PAUSE, FILE_PAUSE = 0.01, 0.01, 0.01


class Teller(pl.Callback):
    """Writes lines that outlive the process.

    Args:
        run: The program.
    """

    def __init__(self, run):
        self.run = run
        self.step = 0

    def tell(self, **what):
        self.run.write("told.jsonl", {**what, "fit": self.run.number, "at": self.step, "time": time.time()})

    def on_train_start(self, trainer, *_):
        self.step = trainer.global_step
        self.tell(rank=trainer.global_rank, start=trainer.global_step)

    def on_train_batch_end(self, trainer, *_, **__):
        self.step = trainer.global_step
        if trainer.is_global_zero:
            self.tell(step=trainer.global_step)
        time.sleep(PAUSE)

    def on_validation_batch_start(self, trainer, *_, **__):
        if trainer.is_global_zero and not trainer.sanity_checking:
            self.tell(validation=trainer.global_step)
        time.sleep(VALIDATION_PAUSE)

    def on_train_end(self, trainer, *_):
        if trainer.is_global_zero:
            self.tell(gap=trainer.global_step)
            time.sleep(FILE_PAUSE)

    on_fit_end = on_train_end

    def watch_files(self, **folders):
        """Tell of each file that is opened for writing or renamed in one of these folders."""

        def hook(event, arguments):
            if event == "open" and isinstance(arguments[2], int) and arguments[2] & (os.O_WRONLY | os.O_RDWR):
                path = arguments[0]
            elif event == "os.rename":
                path = arguments[1]
            else:
                return
            for kind, folder in folders.items():
                if isinstance(path, (str, bytes, os.PathLike)) and os.fsdecode(path).startswith(folder):
                    self.tell(**{kind: os.path.basename(os.fsdecode(path))})
                    time.sleep(FILE_PAUSE)

        sys.addaudithook(hook)


class Metrics(pl.loggers.logger.Logger):
    """Writes down each logged value, exactly.

    Args:
        run: The program.
    """

    name = version = "campaign"

    def __init__(self, run):
        super().__init__()
        self.run = run

    def log_hyperparams(self, *_, **__):
        pass

    @pl.utilities.rank_zero_only
    def log_metrics(self, metrics, step=None):
        values = {name: repr(float(value)) for name, value in metrics.items()}
        self.run.write("metrics.jsonl", [self.run.number, step, values])


class Gather(pl.Callback):
    """Keeps the weights that the training ends with, from all ranks."""

    state: dict

    def on_fit_end(self, trainer, module):
        self.state = {name: torch.tensor(value) for name, value in gathered_weights(trainer.strategy, module).items()}


class Run:
    """A program in the midst of the job: makes the trainers of its fits, and writes down what each fit ends with.

    Args:
        folder: For what is told.
        options: The group ``sagemaker``.
        ballast: Megabytes.
        kind: The kind of strategy.
        part: The program's name, where the entry point runs several.
        number: How many fits the programs before it had.
    """

    pl = pl

    def __init__(self, folder, options, ballast, kind, part="", number=0):
        self.folder, self.options, self.ballast, self.kind, self.part = folder, options, ballast, kind, part
        self.number = number
        self.job = TrainingJob.resolve()
        self.ranks = int(os.environ.get("WORLD_SIZE", len(self.job.hosts)))
        self.teller = Teller(self)
        self.teller.watch_files(saving=str(self.job.checkpoint_dir), export=str(self.job.model_dir))
        self.gather = Gather()
        #: Those that the last fit ended with, by name.
        self.weights = {}

    def checkpoints(self, *below):
        """A path below the job's directory of checkpoints."""
        return os.path.join(self.job.checkpoint_dir, *below)

    def trainer(self, **arguments):
        """A new trainer with what every fit of the campaign has."""
        arguments = {
            "accelerator": ACCELERATOR,
            "logger": Metrics(self),
            "log_every_n_steps": 1,
            "enable_progress_bar": False,
            "enable_model_summary": False,
            **arguments,
        }
        arguments["callbacks"] = [self.teller, *arguments.get("callbacks", [])]
        if self.kind:
            # Several hosts of one process each get no WORLD_SIZE.
            mesh = {"data_parallel_size": 2} if self.kind.startswith("fsdp2") else {}
            arguments["strategy"] = strategy_of(self.kind, pl.strategies, **mesh)
            arguments["callbacks"].append(self.gather)
        return pl.Trainer(**lightning_sm.trainer_settings(sagemaker=self.options, **arguments))

    def fit(self, trainer, made):
        """Train a set-up, and write down all that a program can read after it."""
        model = made.model
        if not hasattr(model, "ballast"):
            model.register_buffer("ballast", torch.arange(self.ballast * 2**18, dtype=torch.float32))
            if self.kind:
                shard_by_layers(model)
        self.teller.step = 0
        trainer.fit(model, made.train, made.val)
        self.weights = self.gather.state if self.kind else model.state_dict()
        drawn = [repr(float(value)) for value in (torch.rand(()), random.random(), numpy.random.rand())]
        if trainer.is_global_zero:
            result = {
                "steps": trainer.global_step,
                "epoch": trainer.current_epoch,
                "weights": digest(self.weights),
                "exported": self._exported(),
                "metrics": {name: repr(float(value)) for name, value in sorted(trainer.callback_metrics.items())},
                "best": _best(trainer.checkpoint_callback),
                "drawn": drawn,
            }
            self.write("results.jsonl", {"fit": self.number, **result})
        self.number += 1

    def _exported(self):
        path = Path(self.job.model_dir, "model.pt")
        if not path.exists():
            return None
        model = torch.load(path, weights_only=True)
        return digest(model.get("state_dict", model))

    def write(self, name, line):
        """Add a line of JSON to a file, by one write, so that those of several ranks stay whole."""
        descriptor = os.open(Path(self.folder, name), os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, (json.dumps(line) + "\n").encode())
        os.close(descriptor)


def _best(saver):
    """Name, score and weights of the best checkpoint. A file that is written again gets a version in its name."""
    path = getattr(saver, "best_model_path", "")
    if not path:
        return None
    score = saver.best_model_score
    name = re.sub(r"-v\d+(?=\.ckpt$)", "", os.path.basename(path))
    found = {"name": name, "score": None if score is None else repr(float(score))}
    # A later fit with the same trainer may have removed the file. A folder of shards has no weights of one rank.
    if os.path.isfile(path):
        found["weights"] = digest(torch.load(path, weights_only=False)["state_dict"])
    return found


def main(name, folder, options, ballast, kind, part=""):
    """Train a set-up in one fit, or run a program of several."""
    pause_before_forks()
    run = Run(folder, json.loads(options), int(ballast), kind, part, PARTS[name].index(part) if part else 0)
    pl.seed_everything(7)
    if name in PROGRAMS:
        PROGRAMS[name](run)
        return
    epochs, batches = (SHARDED_EPOCHS, SHARDED_BATCHES) if kind else (EPOCHS, BATCHES)
    made = LIBRARY[name](pl, Size(epochs, batches, run.ranks))
    run.fit(run.trainer(**{"max_epochs": epochs, **made.arguments}), made)


if __name__ == "__main__":
    main(*sys.argv[1:])
