"""Saves and resumes each kind of training, on hosts that hold only what they have saved, case by case.

Arguments: results folder, namespace, kinds, ``two`` or ``other`` for the cases, the folder with older checkpoints, and
the kinds whose saves are damaged.
"""

import importlib
import os
import shutil
import signal
import sys
from pathlib import Path

import torch
import torch.distributed as dist

from lightning_sm._atomic_file import remove
from lightning_sm._lightning import Namespace
from lightning_sm._resume import transfers
from lightning_sm._resume.fits import forget_fits
from lightning_sm._resume.identity import ProgramIdentity
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import CheckpointError
from tests.helpers.accelerator import ACCELERATOR
from tests.helpers.callbacks import Crash
from tests.helpers.checkpoint_files import damage
from tests.helpers.sharded import own_part, save_after, sharded_model, strategy_of
from tests.helpers.tiny import loader

# Another folder in each process, by the same path, as hosts have it.
DIRECTORY = Path("/proc/self/cwd/checkpoints")
# A sharded ``ckpt_path`` elsewhere.
GIVEN = Path("/proc/self/cwd/given/step-3.ckpt")
RANK, WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
HOSTS = [Path(os.environ["SAGEMAKER_BASE_DIR"]).parent / f"algo-{rank + 1}" for rank in range(WORLD)]


def seen_by(pl, seen, crash, stop, start_only):
    class Seen(pl.Callback):
        def on_train_start(self, trainer, module):
            seen["started_at"] = trainer.global_step
            if start_only:
                raise Crash

        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == crash:
                raise Crash
            if trainer.global_step == stop and RANK == 0:
                os.kill(os.getpid(), signal.SIGTERM)

        def on_train_batch_end(self, trainer, *_):
            seen["steps"] += 1
            torch.rand(1)

    return Seen()


def fit(pl, kind, *, crash=None, stop=None, start_only=False, ckpt_path=None, wide=False, **more):
    forget_fits()  # as in a new process
    namespace = Namespace(pl.__name__)
    pl.seed_everything(3)
    model = sharded_model(pl)
    if wide:
        model.layers[0], model.layers[2] = torch.nn.Linear(4, 9), torch.nn.Linear(9, 1)
    model.configure_optimizers = lambda: torch.optim.Adam(model.parameters(), lr=0.01)
    seen = {"steps": 0}
    # Launchers over ssh hand the name to the first host only.
    identity = ProgramIdentity(None if RANK else "this")
    resume = callback_class(namespace, "AutoResume")(str(DIRECTORY), more.pop("resume", "auto"), identity, **more)
    save_after(3, 6)
    trainer = pl.Trainer(
        accelerator=ACCELERATOR, devices=1, num_nodes=WORLD, max_epochs=2, strategy=strategy_of(kind, pl.strategies),
        callbacks=[
            resume,
            callback_class(namespace, "GracefulStop")(),
            seen_by(pl, seen, crash, stop, start_only),
        ],
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        num_sanity_val_steps=0,
    )  # fmt: skip
    try:
        trainer.fit(model, loader(32, shuffle=True), ckpt_path=ckpt_path)
    except CheckpointError as error:
        return {"error": str(error)}
    except (Crash, SystemExit) as error:
        seen["code"] = getattr(error, "code", None)
    return {**seen, "resumed_from": resume.resumed_from, "global_step": trainer.global_step, "weights": own(trainer)}


def own(trainer):
    """Every weight that this rank has, as a number that JSON keeps exactly."""
    found = []
    for parameter in trainer.lightning_module.parameters():
        shard = own_part(parameter).flatten()
        # DeepSpeed pads the last shards with whatever is in memory.
        found += shard[: max(0, getattr(parameter, "ds_numel", sys.maxsize) - RANK * len(shard))].tolist()
    return found


def prepare(saved=None):
    """Give each host the same checkpoints, as SageMaker does."""
    dist.barrier()
    shutil.rmtree(DIRECTORY, ignore_errors=True)
    if saved is None:
        DIRECTORY.mkdir()
    else:
        shutil.copytree(saved, DIRECTORY)
    dist.barrier()


def save_of(step, below=DIRECTORY):
    """A save of the series: a folder with shards, or the one file of DDP."""
    (found,) = below.glob(f"*/fit-0/step-{step}.ckpt")
    return found


def shard_of(save):
    """A shard of the second rank; of DDP all of it."""
    if save.is_file():
        return save
    return next(p for p in sorted(save.rglob("*")) if p.name.startswith(("__1_", "zero_pp_rank_1")))


def on_one_host_each(pl, kind, saved, seen):
    """The hosts are started again in place, with their own shards."""
    prepare()
    seen["whole"] = fit(pl, kind)
    prepare()
    fit(pl, kind, crash=8)
    seen["files"] = sorted(str(p.relative_to(DIRECTORY)) for p in DIRECTORY.rglob("*") if p.is_file())
    if RANK == 0:
        for host in HOSTS:
            shutil.copytree(host / "checkpoints", saved, dirs_exist_ok=True)
    seen["resumed"] = fit(pl, kind)
    seen["again"] = fit(pl, kind)
    prepare()
    seen["terminated"] = fit(pl, kind, stop=4)
    seen["after it"] = fit(pl, kind)


def tested(pl, kind, seen):
    """Test and validate the best checkpoint after the fit, and the same step's weights of a fit that ends there."""

    class Grows(pl.Callback):
        def on_train_batch_end(self, trainer, module, *_):
            module.log("grows", float(trainer.global_step))

    def play(steps, ckpt_path):
        prepare()
        pl.seed_everything(3)
        model = sharded_model(pl)
        best = pl.callbacks.ModelCheckpoint(None, "{step}", monitor="grows", every_n_train_steps=3)
        best.dirpath = str(DIRECTORY)  # the constructor would resolve it, to that of one host
        forget_fits()
        resume = callback_class(Namespace(pl.__name__), "AutoResume")(str(DIRECTORY))
        trainer = pl.Trainer(
            accelerator=ACCELERATOR, devices=1, num_nodes=WORLD, max_steps=steps,
            strategy=strategy_of(kind, pl.strategies), callbacks=[Grows(), best, resume], logger=False,
            enable_progress_bar=False, enable_model_summary=False, limit_val_batches=0, num_sanity_val_steps=0,
        )  # fmt: skip
        trainer.fit(model, loader())
        trainer.limit_val_batches = 1.0
        files = (*DIRECTORY.glob("*.ckpt"), *DIRECTORY.glob("*.ckpt/**/*"))
        here = sorted(path.name for path in files if path.is_file())
        found = [run(model, loader(), ckpt_path=ckpt_path)[0] for run in (trainer.test, trainer.validate)]
        found.append(trainer.test(model, loader(), ckpt_path=ckpt_path)[0])
        return trainer, {"metrics": found, "files": here, "weights": own(trainer)}

    trainer, seen["best of six"] = play(6, "best")
    if kind == "ddp":
        seen["file"] = loaded(trainer)
    _, seen["ended at three"] = play(3, None)


def loaded(trainer):
    """Load the best file where the other host has none, has another one, and cannot write one."""
    model, best = trainer.lightning_module, DIRECTORY / "step=3.ckpt"
    model.predict_step = lambda batch, *_: model.layers(batch[0])

    def load(run, change):
        if RANK == 1:
            change()
        for parameter in model.parameters():
            parameter.data.zero_()
        try:
            # A relative path, which each host takes from where it is.
            run(model, loader(), ckpt_path=f"{DIRECTORY.name}/{best.name}")
        except CheckpointError as error:
            return {"error": str(error)}
        return {"weights": own(trainer)}

    def cannot_write():
        shutil.rmtree(DIRECTORY)
        DIRECTORY.touch()

    found = {
        "none": load(trainer.predict, best.unlink),
        "another": load(trainer.test, lambda: best.write_bytes(b"of another training")),
        "not writable": load(trainer.test, cannot_write),
    }
    if RANK == 1:
        DIRECTORY.unlink()
    return found


def damaged(pl, kind, saved, seen):
    def case(name, change, *, only=(0, 1), **more):
        prepare(saved)
        if RANK in only:
            change(save_of(6))
        seen[name] = fit(pl, kind, start_only=True, **more)

    case("nothing", lambda newest: None)
    case("missing", lambda newest: shard_of(newest).unlink())
    case("flipped", lambda newest: damage(shard_of(newest), "flipped bit"))
    case("of another save", lambda newest: shutil.copy(shard_of(save_of(3)), shard_of(newest)))
    case("flipped on one host", lambda newest: damage(shard_of(newest), "flipped bit"), only=(1,))
    case("not on one host", remove, only=(1,))
    case("not on the main host", remove, only=(0,))
    case("record on one host", lambda newest: newest.with_suffix(".json").unlink(), only=(0,))
    case("no record", lambda newest: newest.with_suffix(".json").unlink())
    case("weights only", lambda newest: None, weights_only=True)
    case("changed model", lambda newest: None, wide=True)
    case("given, but not used", lambda newest: None, ckpt_path=str(DIRECTORY / "none.ckpt"))
    given(pl, kind, saved, seen)


def given(pl, kind, saved, seen):
    """Each host has the shards that it has saved; and then one of them is damaged."""
    for name, change in (("given", lambda shard: None), ("given, damaged", lambda shard: damage(shard, "flipped bit"))):
        prepare()
        shutil.rmtree(GIVEN.parent, ignore_errors=True)
        GIVEN.parent.mkdir()
        save = save_of(3, saved)
        (shutil.copy if save.is_file() else shutil.copytree)(save, GIVEN)
        if kind != "ddp":
            other = shard_of(GIVEN)
            change(other)
            if RANK == 0:
                other.unlink()
        seen[name] = fit(pl, kind, start_only=True, ckpt_path=str(GIVEN))


def main(folder, namespace, kinds, cases, older, damaged_kinds=""):
    os.chdir(os.environ["SAGEMAKER_BASE_DIR"])
    transfers._CHUNK = 1000  # each file is sent in pieces
    pl = importlib.import_module(namespace)
    older, seen = Path(older), {}
    if not dist.is_initialized():
        dist.init_process_group("gloo")
    for kind in kinds.split(","):
        of_kind = seen.setdefault(kind, {})
        if cases == "two":
            tested(pl, kind, of_kind)
            on_one_host_each(pl, kind, older / kind, of_kind)
            if kind in damaged_kinds.split(","):
                damaged(pl, kind, older / kind, of_kind)
            continue
        for saved in sorted(older.iterdir()):
            prepare(saved)
            of_kind[saved.name] = fit(pl, kind, start_only=True)
    return seen
