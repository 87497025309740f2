"""Trains the library of set-ups by Lightning alone, and with us, stopped, killed and resumed, and writes the numbers.

Arguments: results folder, kinds, names of set-ups; the last two with commas.
"""

import shutil
import sys
from pathlib import Path

import pytorch_lightning as pl
import torch

from tests.helpers.callbacks import Crash
from tests.helpers.sharded import gathered_weights, save_after, strategy_of
from tests.helpers.sharded_setups import SHARDED_SETUPS, names_of
from tests.helpers.tiny import loader

EPOCHS, BATCHES, KILLED = 3, 8, 14
# After which steps the job saves. At the start of the second epoch of these set-ups a callback has saved, too.
SAVED_AFTER = {"stopped_early": [4]}


class Record(pl.Callback):
    """What is computed and logged with each batch and epoch, and the weights at the end."""

    def __init__(self, kill_at):
        self.kill_at, self.found = kill_at, {"batches": {}, "epochs": {}}

    def state_dict(self):
        return {}  # what it has seen is this process's own

    def on_train_start(self, trainer, *_):
        self.found["start"] = trainer.global_step

    def on_train_batch_start(self, trainer, module, batch, batch_index):
        if trainer.current_epoch * BATCHES + batch_index == self.kill_at:
            raise Crash

    def on_train_batch_end(self, trainer, module, outputs, batch, batch_index):
        logged = {name: float(value) for name, value in trainer.logged_metrics.items() if name.endswith("_step")}
        rates = {f"rate {n}": group["lr"] for n, group in enumerate(trainer.optimizers[0].param_groups)}
        place = trainer.current_epoch * BATCHES + batch_index
        self.found["batches"][str(place)] = {"loss": float(outputs["loss"]), **rates, **logged}

    def on_train_epoch_end(self, trainer, *_):
        found = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.found["epochs"][str(trainer.current_epoch)] = found

    def on_fit_end(self, trainer, module):
        self.found["weights"] = gathered_weights(trainer.strategy, module)
        self.found["metrics"] = {name: float(value) for name, value in trainer.callback_metrics.items()}
        self.found["counters"] = [trainer.global_step, trainer.current_epoch]


def train(name, kind, settings, kill_at=None, ckpt_path=None, **more):
    pl.seed_everything(3, verbose=False)
    made, record = SHARDED_SETUPS[name](pl, kind), Record(kill_at)
    arguments = {
        "accelerator": "cpu",
        "devices": 2,
        "strategy": strategy_of(kind, pl.strategies, **made.strategy),
        "max_epochs": EPOCHS,
        "logger": False,
        "log_every_n_steps": 1,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        **made.arguments,
        **more,
    }
    trainer = pl.Trainer(**settings(**arguments, callbacks=[*made.callbacks, record]))
    data = loader(32, shuffle=True), loader(32) if made.validates else None
    try:
        trainer.fit(made.model, *data, ckpt_path=ckpt_path)
    except (Crash, SystemExit) as error:
        record.found["code"] = getattr(error, "code", None)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {**record.found, "steps": trainer.global_step}


def with_us(name, kind, folder, refused):
    """The job's first start, which its time limit ends, one that is killed, one that ends well, and one more.

    Beside it: one of each strategy that reads a file of FSDP or FSDP2 with the whole state; and one that begins with
    DDP.
    """
    import lightning_sm
    from lightning_sm._resume.fits import forget_fits

    def play(kill_at=None, limit=None, below=folder, kind=kind, **more):
        forget_fits()  # as in a new process
        own = {"checkpoint_dir": str(below), "model_dir": f"{folder}-model", "report": False, "max_runtime": limit}
        # The whole model is gathered for its export at each end.
        own["export"] = name == "ema_weight_averaging"

        def settings(**arguments):
            # The launcher tells the devices.
            del arguments["devices"], arguments["enable_checkpointing"]
            arguments["callbacks"].append(pl.callbacks.ModelCheckpoint())
            options = {key: value for key, value in own.items() if value is not None}
            made = lightning_sm.trainer_settings(sagemaker=options, **arguments)
            save_after(*SAVED_AFTER.get(name, [3, 6, 9, 12]))
            return made

        return train(name, kind, settings, kill_at, **more)

    if refused:
        return {"refused": play()}
    if not SHARDED_SETUPS[name](pl, kind).is_killed:
        return {"ours": play()}
    found = {}
    if name == "stopped_early":
        found["limited"] = play(limit="1s")
    found["killed"] = play(KILLED)
    is_whole_file = kind.endswith("_full") and name == "scheduled_and_averaged"
    if is_whole_file:
        (saved,) = folder.glob("*/fit-0/step-12.ckpt")
        given = f"{folder}-given.ckpt"
        if torch.distributed.get_rank() == 0:
            shutil.copy(saved, given)
        torch.distributed.barrier()
    if SHARDED_SETUPS[name](pl, kind).ends:
        found["resumed"] = play()
        found["again"] = play()
    if is_whole_file:
        others = ("ddp", "fsdp", "fsdp2")
        found["elsewhere"] = {each: play(below=f"{folder}-{each}", kind=each, ckpt_path=given) for each in others}
        play(KILLED, below=f"{folder}-first-ddp", kind="ddp")
        found["after ddp"] = play(below=f"{folder}-first-ddp")
    exported = Path(f"{folder}-model", "model.pt")
    torch.distributed.barrier()
    if exported.exists():
        state = torch.load(exported, weights_only=True)
        found["exported"] = {key: value.flatten().tolist() for key, value in state.items()}
    return found


def main(folder, kinds, names):
    found = {}
    for kind in kinds.split(","):
        for name in names_of(kind, names.split(",")):
            made = SHARDED_SETUPS[name](pl, kind)
            if made.ends and not made.refused:
                found.setdefault(kind, {})[name] = {"plain": train(name, kind, dict)}
    assert "lightning_sm" not in sys.modules
    for kind in kinds.split(","):
        for name in names_of(kind, names.split(",")):
            refused = bool(SHARDED_SETUPS[name](pl, kind).refused)
            result = found.setdefault(kind, {}).setdefault(name, {})
            result.update(with_us(name, kind, Path(folder, f"{kind}-{name}"), refused))
    return found
