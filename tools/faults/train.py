"""Trains a set-up of the library and writes down what happens, in pauses long enough to be killed in.

Arguments: the set-up's name, the folder for what is told, the options of ``sagemaker`` as JSON, megabytes of ballast,
the kind of strategy.
"""

import hashlib
import json
import os
import sys
import time
from pathlib import Path

import torch

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from lightning_sm._sagemaker.job import TrainingJob
from tests.helpers.forks import pause_before_forks
from tests.helpers.setups import Size
from tests.helpers.sharded import cpu_strategy
from tests.helpers.sharded_cases import gathered_weights, shard_by_layers
from tools.faults.plan import LIBRARY

pl = installed_namespaces()[0].module()

EPOCHS, BATCHES = 4, 12
# Each save of a sharded strategy takes longer.
SHARDED_EPOCHS, SHARDED_BATCHES = 3, 8

# Seconds, for each training batch, each validation batch and each file that is written.
PAUSE, VALIDATION_PAUSE, FILE_PAUSE = 0.01, 0.01, 0.02


class Teller(pl.Callback):
    """Writes lines of JSON, one write each, so that those of several ranks stay whole and outlive the process."""

    def __init__(self, folder):
        self.path = Path(folder, "told.jsonl")
        self.step = 0

    def tell(self, **what):
        descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.write(descriptor, (json.dumps({**what, "at": self.step, "time": time.time()}) + "\n").encode())
        os.close(descriptor)

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
        self._gap(trainer)

    def on_fit_end(self, trainer, *_):
        self._gap(trainer)

    def _gap(self, trainer):
        if trainer.is_global_zero:
            self.tell(gap=trainer.global_step)
            time.sleep(FILE_PAUSE)

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
    """Writes down each logged value, exactly."""

    name = version = "campaign"

    def __init__(self, folder):
        super().__init__()
        self.path = Path(folder, "metrics.jsonl")

    def log_hyperparams(self, *_, **__):
        pass

    @pl.utilities.rank_zero_only
    def log_metrics(self, metrics, step=None):
        with open(self.path, "a") as file:
            file.write(json.dumps([step, {name: repr(float(value)) for name, value in metrics.items()}]) + "\n")


def digest(state):
    """One word for all tensors, but the ballast."""
    total = hashlib.sha256()
    for name in sorted(state):
        if "ballast" not in name and torch.is_tensor(state[name]):
            total.update(name.encode() + state[name].detach().cpu().contiguous().numpy().tobytes())
    return total.hexdigest()[:16]


class Gather(pl.Callback):
    """Keeps the weights that the training ends with, from all ranks."""

    state: dict

    def on_fit_end(self, trainer, module):
        self.state = {name: torch.tensor(value) for name, value in gathered_weights(trainer.strategy, module).items()}


def _mesh(kind):
    # Several hosts of one process each get no WORLD_SIZE.
    return {"data_parallel_size": 2} if kind.startswith("fsdp2") else {}


def main(name, folder, options, ballast, kind):
    pause_before_forks()
    job = TrainingJob.resolve()
    teller = Teller(folder)
    teller.watch_files(saving=str(job.checkpoint_dir), export=str(job.model_dir))
    pl.seed_everything(7)
    epochs, batches = (SHARDED_EPOCHS, SHARDED_BATCHES) if kind else (EPOCHS, BATCHES)
    made = LIBRARY[name](pl, Size(epochs, batches, int(os.environ.get("WORLD_SIZE", len(job.hosts)))))
    made.model.register_buffer("ballast", torch.arange(int(ballast) * 2**18, dtype=torch.float32))
    arguments = {
        "accelerator": "cpu",
        "max_epochs": epochs,
        "logger": Metrics(folder),
        "log_every_n_steps": 1,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **made.arguments,
    }
    arguments["callbacks"] = [teller, *arguments.get("callbacks", [])]
    gather = Gather()
    if kind:
        shard_by_layers(made.model)
        arguments["strategy"] = cpu_strategy(kind, pl.strategies, **_mesh(kind))
        arguments["callbacks"].append(gather)
    trainer = pl.Trainer(**lightning_sm.trainer_settings(sagemaker=json.loads(options), **arguments))
    trainer.fit(made.model, made.train, made.val)
    if trainer.is_global_zero:
        model = torch.load(os.path.join(job.model_dir, "model.pt"), weights_only=True)
        result = {
            "steps": trainer.global_step,
            "weights": digest(gather.state if kind else made.model.state_dict()),
            "exported": digest(model.get("state_dict", model)),
        }
        Path(folder, "result.json").write_text(json.dumps(result))


if __name__ == "__main__":
    main(*sys.argv[1:])
