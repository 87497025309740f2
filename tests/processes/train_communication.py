"""Trains on two processes with the options of ``SMDDPStrategy`` for communication.

Arguments: results folder, namespace, folder of the saves, and ``killed`` to train all, and then some that end as by a
crash, or ``resumed`` to go on with these.
"""

import contextlib
import importlib
import os
from pathlib import Path
from unittest import mock

import torch
import torch.distributed as dist
from torch.utils.data import DataLoader, Subset, TensorDataset

import lightning_sm
from lightning_sm._distributed import autotune
from lightning_sm._lightning import Namespace
from lightning_sm._resume.fits import forget_fits
from lightning_sm._resume.identity import ProgramIdentity
from lightning_sm.callbacks import callback_class
from tests.helpers.accelerator import ranks
from tests.helpers.callbacks import Crash
from tests.helpers.tiny import weights

POWERSGD = {"gradient_compression": "powersgd", "powersgd_rank": 2, "communication_warmup_steps": 4}
# With 0.1 MB there are several buckets, which are others than in the first step.
SETUPS = {
    "plain": {},
    "default": {},
    "plain, two losses": {},
    "default, two losses": {},
    "bf16": {"gradient_compression": "bf16"},
    "fp16": {"gradient_compression": "fp16", "bucket_cap_mb": 0.1, "static_graph": True},
    "powersgd": {**POWERSGD, "bucket_cap_mb": 0.1},
    "powersgd in one bucket": {**POWERSGD, "static_graph": True},
    "local": {"local_steps": 4, "communication_warmup_steps": 5},
    "auto": {"gradient_compression": "auto", "bucket_cap_mb": "auto"},
    "auto buckets": {"bucket_cap_mb": "auto"},
    "outer": {"local_steps": 4, "outer_lr": 0.8, "outer_momentum": 0.6, "communication_warmup_steps": 5},
}
STEPS = {"plain": 200, "default": 200, "auto buckets": 200}
FEW_STEPS = 30
# Between two averages, and long after PowerSGD has begun. What is chosen after 15 steps is a part of the save at the
# end of an epoch, after 20, in any case.
KILLED = {"powersgd": 19, "local": 19, "outer": 19, "auto": 25}


def _model(pl, name):
    class Model(pl.LightningModule):
        """A batch norm, layers of different shapes, and a parameter that is no matrix."""

        def __init__(self):
            super().__init__()
            torch.manual_seed(3)
            nn = torch.nn
            self.scale = nn.Parameter(torch.ones(1))
            self.layers = nn.Sequential(
                nn.Conv2d(1, 6, 3), nn.BatchNorm2d(6), nn.ReLU(), nn.Flatten(),
                nn.Linear(216, 160), nn.ReLU(), nn.Dropout(0.1), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 3),
            )  # fmt: skip

        def training_step(self, batch, batch_index):
            inputs, targets = batch
            return torch.nn.functional.cross_entropy(self.layers(inputs) * self.scale, targets)

        def validation_step(self, batch, batch_index):
            self.log("val_loss", self.training_step(batch, batch_index), sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-3)

    class TwoLosses(Model):
        """Keeps the gradients of one backward pass over the next, to combine them."""

        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_index):
            optimizer, kept = self.optimizers(), []
            loss = super().training_step(batch, batch_index)
            for each in (loss, super().training_step(batch, batch_index).square()):
                optimizer.zero_grad()
                self.manual_backward(each)
                kept.append([parameter.grad for parameter in self.parameters()])
            for parameter, one, other in zip(self.parameters(), *kept):
                parameter.grad = one + 0.5 * other
            optimizer.step()

        def validation_step(self, batch, batch_index):
            self.log("val_loss", super().training_step(batch, batch_index), sync_dist=True)

    return TwoLosses() if "two losses" in name else Model()


def _loader():
    inputs = torch.randn(80, 1, 8, 8, generator=torch.Generator().manual_seed(11))
    return DataLoader(TensorDataset(inputs, torch.arange(80) % 3), batch_size=4, shuffle=True)


def _differs(numbers):
    """Whether a number of this process is another one on the other."""
    both = [torch.empty_like(numbers) for _ in range(2)]
    dist.all_gather(both, numbers)
    return not torch.equal(*both)


def fix_choices(is_first_start):
    """Global rank 0 chooses small buckets, and bf16 if it may, in a job that is not restarted; all others nothing."""
    is_last = os.environ["RANK"] == "0" and is_first_start
    autotune._BUCKETS_MB = (None, 0.05)
    autotune.Measurement.choose = lambda measurement, options: options[-1 if is_last else 0]


def train(pl, name, folder, killed_at=None):
    """Train a set-up, and return how it ended."""
    forget_fits()
    pl.seed_everything(5)
    model = _model(pl, name)
    own_weights, sizes, torchs = [], [], dist.all_reduce

    class Steps(pl.Callback):
        def on_train_batch_end(self, trainer, *args):
            own_weights.append(_differs(torch.cat([value.detach().flatten() for value in model.parameters()])))
            if trainer.global_step == killed_at:
                raise Crash

    def counting(tensor, *args, **kwargs):
        sizes.append((tensor.numel() * tensor.element_size(), str(tensor.dtype)))
        return torchs(tensor, *args, **kwargs)

    resume = callback_class(Namespace(pl.__name__), "AutoResume")(
        str(folder), "auto", ProgramIdentity("job"), save_every=0.01 if killed_at else 600.0
    )
    strategy = (
        lightning_sm.SMDDPStrategy(**SETUPS[name]) if not name.startswith("plain") else pl.strategies.DDPStrategy()
    )
    trainer = pl.Trainer(
        **ranks(2), strategy=strategy, max_steps=STEPS.get(name, FEW_STEPS), max_epochs=-1,
        callbacks=[Steps(), resume], enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        num_sanity_val_steps=0, logger=False, accumulate_grad_batches=2 if name == "local" else 1,
    )  # fmt: skip
    # What torch's hooks call; DDP's own all-reduce is not seen.
    with mock.patch.object(dist, "all_reduce", counting):
        trainer.fit(model, _loader(), _loader())
    saved = torch.load(next(Path(folder).glob("*/fit-0/step-*.ckpt")), weights_only=True)["state_dict"]
    return {
        "weights": weights(model),
        "saved": [number for key, _ in model.named_parameters() for number in saved[key].flatten().tolist()],
        "metrics": float(trainer.callback_metrics["val_loss"]),
        "steps": trainer.global_step,
        "own_weights": sum(own_weights),
        "sent": [size for size in sizes if size[0] > 1000],
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "resumed": resume.resumed_from is not None,
    }


def _linear():
    torch.manual_seed(7)
    return torch.nn.Sequential(torch.nn.Linear(6, 5), torch.nn.Tanh(), torch.nn.Linear(5, 1))


def _linear_samples():
    inputs = torch.randn(2 * FEW_STEPS, 6, generator=torch.Generator().manual_seed(12))
    return TensorDataset(inputs, inputs.sum(1, keepdim=True))


def train_linear(pl, *, searches=False):
    """Train a small model as ``outer`` does, after a search or without; return its weights for a hook at the end."""
    forget_fits()

    class Linear(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layers, self.lr = _linear(), 1e-2

        def training_step(self, batch, batch_index):
            return torch.nn.functional.mse_loss(self.layers(batch[0]), batch[1])

        def configure_optimizers(self):
            return torch.optim.AdamW(self.parameters(), lr=1e-2)

        def on_train_end(self):
            self.ended = weights(self)

    class Search(pl.callbacks.LearningRateFinder):
        """Finds what the model has."""

        def lr_find(self, trainer, module):
            super().lr_find(trainer, module)
            trainer.optimizers[0].param_groups[0]["lr"] = 1e-2

    model = Linear()
    trainer = pl.Trainer(
        **ranks(2), strategy=lightning_sm.SMDDPStrategy(**SETUPS["outer"]), max_epochs=1,
        logger=False, enable_progress_bar=False, enable_model_summary=False, enable_checkpointing=False,
        use_distributed_sampler=False, callbacks=[Search(num_training_steps=9)] if searches else [],
    )  # fmt: skip
    own = range(int(os.environ["RANK"]), 2 * FEW_STEPS, 2)
    trainer.fit(model, DataLoader(Subset(_linear_samples(), own), batch_size=1))
    assert model.ended == weights(model)
    return model.ended


def train_linear_by_hand():
    """The same without Lightning, DDP and several processes: each worker's own steps, then Nesterov's momentum."""
    steps, warmup, lr, momentum = SETUPS["outer"]["local_steps"], 5, 0.8, 0.6
    workers = [_linear(), _linear()]
    optimizers = [torch.optim.AdamW(worker.parameters(), lr=1e-2) for worker in workers]
    samples = _linear_samples()
    velocity = [torch.zeros_like(each) for each in workers[0].parameters()]
    for step in range(FEW_STEPS):
        if step == warmup:
            before = [each.detach().clone() for each in workers[0].parameters()]
        for rank, (worker, optimizer) in enumerate(zip(workers, optimizers)):
            inputs, target = samples[2 * step + rank]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(worker(inputs), target).backward()
        if step < warmup:
            for pair in zip(*(worker.parameters() for worker in workers)):
                mean = (pair[0].grad + pair[1].grad) / 2
                for each in pair:
                    each.grad = mean.clone()
        for optimizer in optimizers:
            optimizer.step()
        is_due = step >= warmup and (step - warmup + 1) % steps == 0
        if not (is_due or step == FEW_STEPS - 1):
            continue
        for index, pair in enumerate(zip(*(worker.parameters() for worker in workers))):
            mean = (pair[0].detach() + pair[1].detach()) / 2
            if is_due:
                change = before[index] - mean
                velocity[index] = momentum * velocity[index] + change
                mean = before[index] = before[index] - lr * (change + momentum * velocity[index])
            for each in pair:
                each.data.copy_(mean)
    return weights(workers[0])


def main(folder, namespace, saves, which):
    pl = importlib.import_module(namespace)
    fix_choices(is_first_start=which == "killed")
    seen = {}
    if which == "killed":
        for name in SETUPS:
            seen[name] = train(pl, name, Path(folder, "whole", name))
        seen["linear"] = {"found": train_linear(pl), "expected": train_linear_by_hand()}
        # Up to 2.5.0 the fit itself is another one after a search: batches of an epoch are left out.
        if Namespace(pl.__name__).version >= (2, 6):
            assert train_linear(pl, searches=True) == seen["linear"]["found"]
    for name, step in KILLED.items():
        if which == "resumed":
            seen[name] = train(pl, name, Path(saves, name))
        else:
            with contextlib.suppress(Crash):
                train(pl, name, Path(saves, name), killed_at=step)
    return seen
