"""Set-ups with callbacks, metrics and checkpoints."""

import copy
import os
from collections import defaultdict, deque

import numpy
import torch
import torchmetrics
from torch import nn
from torch.utils.data import DataLoader

from lightning_sm._sagemaker.job import TrainingJob
from tests.helpers.accelerator import ON_GPU
from tests.helpers.callbacks import averaging, unfreezing, warming
from tests.helpers.setups.core import (
    BATCH_SIZE,
    Numbers,
    Setup,
    in_order,
    logging_net,
    net,
    plateau,
    scheduled,
    setup,
    shuffled,
)
from tests.helpers.tiny import with_batch_norm

# --- metrics of an epoch


@setup
def plateau_on_epoch_mean(pl, size):
    model = scheduled(pl, plateau, base=type(logging_net(pl)), monitor="train_loss_epoch")
    return Setup(model, shuffled(size))


@setup
def metric_objects(pl, size):
    class Net(net(pl)):
        def __init__(self):
            super().__init__()
            self.train_error = torchmetrics.MeanSquaredError()
            self.val_error = torchmetrics.MeanAbsoluteError()

        def training_step(self, batch, batch_idx):
            inputs, targets = batch
            outputs = self.layers(inputs)
            self.train_error(outputs, targets)
            self.log("train_error", self.train_error, on_step=True, on_epoch=True)
            return nn.functional.mse_loss(outputs, targets)

        def validation_step(self, batch, batch_idx):
            self.val_error(self.layers(batch[0]), batch[1])
            self.log("val_error", self.val_error)

    return Setup(Net(), shuffled(size), in_order(3))


@setup
def metric_wrappers(pl, size):
    """Metrics that hold more than their states, and a layer in TorchScript."""

    class Spread(torchmetrics.Metric):
        def __init__(self):
            super().__init__()
            self.add_state("total", torch.zeros(()), "sum")
            self.seen = []

        def update(self, value):
            self.total += value
            self.seen.append(float(value))

        def compute(self):
            return self.total + max(self.seen) - min(self.seen)

    class Net(net(pl)):
        def __init__(self):
            super().__init__()
            self.layers[0] = torch.jit.script(self.layers[0])
            self.extremes = torchmetrics.MinMaxMetric(torchmetrics.MeanMetric())
            self.running = torchmetrics.RunningMean(4)
            self.by_epoch = torchmetrics.MetricTracker(torchmetrics.MeanMetric(), maximize=False)
            self.spread = Spread()

        def on_train_epoch_start(self):
            self.by_epoch.increment()

        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            for metric in (self.extremes, self.running, self.by_epoch, self.spread):
                metric.update(loss.detach())
            self.log_dict({**self.extremes.compute(), "running": self.running.compute()})
            return loss

        def on_train_epoch_end(self):
            self.log("best", self.by_epoch.best_metric())
            self.log("spread", self.spread.compute())

    class Watches(pl.Callback):
        def __init__(self):
            self.metrics = {"loss": torchmetrics.MeanMetric()}

        def on_train_batch_end(self, trainer, pl_module, outputs, *_):
            self.metrics["loss"].update(outputs["loss"].item())

        def on_train_epoch_end(self, trainer, pl_module):
            pl_module.log("watched", self.metrics["loss"].compute(), sync_dist=True)
            self.metrics["loss"].reset()

    return Setup(Net(), shuffled(size), in_order(), {"callbacks": [Watches()]})


@setup
def several_val_loaders(pl, size):
    class Net(net(pl)):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val_loss", self.loss(batch), sync_dist=True)

    return Setup(Net(), shuffled(size), [in_order(2), in_order(3)], {"val_check_interval": 0.5})


# --- averages of weights


@setup
def stochastic_weight_averaging(pl, size):
    average = pl.callbacks.StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=1, annealing_epochs=1)
    return Setup(with_batch_norm(net(pl)()), shuffled(size), in_order(), {"callbacks": [average]})


@setup
def weight_averaging(pl, size):
    # On GPUs torch's AveragedModel fails with the counters of batch norms, which are integers.
    model = net(pl)() if ON_GPU else with_batch_norm(net(pl)())
    return Setup(model, shuffled(size), in_order(), {"callbacks": [pl.callbacks.WeightAveraging()]})


@setup
def ema_weight_averaging(pl, size):
    average = pl.callbacks.EMAWeightAveraging(decay=0.9, update_starting_at_step=3)
    options = {"callbacks": [average], "val_check_interval": 0.5}
    return Setup(net(pl)(), shuffled(size), in_order(), options)


@setup
def pruning(pl, size):
    model = net(pl)()
    # It goes back to the first weights of each rank, which has a seed of its own.
    for each in model.parameters():
        each.data.uniform_(-0.5, 0.5, generator=torch.Generator().manual_seed(1))
    prune = pl.callbacks.ModelPruning(
        "l1_unstructured", parameters_to_prune=[(model.layers[0], "weight")], amount=0.25, verbose=0
    )
    return Setup(model, shuffled(size), in_order(), {"callbacks": [prune]})


@setup
def handwritten_average(pl, size):
    return Setup(net(pl)(), shuffled(size), in_order(4), {"callbacks": [averaging(pl)]})


@setup
def average_swapped_in_at_the_start(pl, size):
    class Average(pl.Callback):
        """As schnetpack's: the averages are in the model but for the batches, and the trained weights in the state."""

        def __init__(self):
            self.average = self.trained = None

        def _swap(self, pl_module):
            self.trained = copy.deepcopy(pl_module.layers.state_dict())
            pl_module.layers.load_state_dict(self.average)

        def on_fit_start(self, trainer, pl_module):
            if self.average is None:
                self.average = copy.deepcopy(pl_module.layers.state_dict())
            self._swap(pl_module)

        def on_train_epoch_start(self, trainer, pl_module):
            pl_module.layers.load_state_dict(self.trained)

        def on_train_batch_end(self, trainer, pl_module, *_):
            for name, value in pl_module.layers.state_dict().items():
                self.average[name] = 0.9 * self.average[name].to(value.device) + 0.1 * value

        def on_validation_epoch_start(self, trainer, pl_module):
            self._swap(pl_module)

        def state_dict(self):
            return {"average": self.average, "trained": self.trained}

        def load_state_dict(self, state):
            self.average, self.trained = state["average"], state["trained"]

    return Setup(net(pl)(), shuffled(size), in_order(4), {"callbacks": [Average()]})


@setup
def pretrained_at_the_start(pl, size):
    class Pretrained(net(pl)):
        def on_fit_start(self):
            torch.nn.init.constant_(self.layers[0].weight, 0.1)

        def on_train_start(self):
            torch.nn.init.constant_(self.layers[0].bias, 0.2)
            self.optimizers().param_groups[0]["momentum"] = 0.5
            self.lr_schedulers().last_epoch = 0

        def on_train_batch_start(self, *_):
            self.optimizers().param_groups[0]["momentum"] *= 0.95

    def cosine(optimizer, trainer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 40)

    return Setup(scheduled(pl, cosine, Pretrained, interval="step"), shuffled(size), in_order(4), {})


# --- what changes the training


@setup
def finetuning(pl, size):
    def trainable(module):
        return torch.optim.SGD([each for each in module.parameters() if each.requires_grad], lr=0.01, momentum=0.9)

    return Setup(net(pl, trainable)(), shuffled(size), in_order(), {"callbacks": [unfreezing(pl, 0.005)]})


@setup
def callback_with_state(pl, size):
    return Setup(net(pl)(), shuffled(size), None, {"callbacks": [warming(pl)], "gradient_clip_val": 1.0})


@setup
def callbacks_of_the_model(pl, size):
    class Net(type(logging_net(pl))):
        def configure_callbacks(self):
            best = pl.callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=1, filename="best")
            return [best, pl.callbacks.EarlyStopping("val_loss", patience=2)]

    return Setup(Net(), shuffled(size), in_order())


# --- checkpoints of the project's own


def _directory(*below):
    return os.path.join(TrainingJob.resolve().checkpoint_dir or "checkpoints", *below)


@setup
def deep_checkpoints(pl, size):
    # Each folder and each prefix is the project's own.
    saver = {"dirpath": _directory("experiment", "run1"), "save_top_k": 2, "monitor": "step", "mode": "max"}
    by_step = pl.callbacks.ModelCheckpoint(**saver, every_n_train_steps=4, filename="{step}")
    by_epoch = pl.callbacks.ModelCheckpoint(**saver, every_n_epochs=1, filename="of/{epoch}")
    return Setup(net(pl)(), shuffled(size), in_order(), {"callbacks": [by_step, by_epoch]})


@setup
def last_and_best(pl, size):
    saver = pl.callbacks.ModelCheckpoint(
        monitor="val_loss", save_top_k=2, save_last=True, filename="{epoch}-{val_loss:.3f}"
    )
    return Setup(net(pl)(), shuffled(size), in_order(), {"callbacks": [saver]})


@setup
def best_within_epochs(pl, size):
    saver = pl.callbacks.ModelCheckpoint(monitor="val_loss", save_top_k=1, save_last="link")
    return Setup(net(pl)(), shuffled(size), in_order(), {"callbacks": [saver], "val_check_interval": 4})


# --- attributes that nobody saves


@setup
def attributes(pl, size):
    class Scale(nn.Module):
        """Counts its calls in a plain attribute."""

        def __init__(self):
            super().__init__()
            self.calls = 0

        def forward(self, inputs):
            self.calls += self.training
            return inputs / (1 + 0.01 * self.calls)

    class Net(net(pl)):
        def __init__(self):
            super().__init__()
            self.layers.append(Scale())
            self.losses, self.recent, self.counts = [], deque(maxlen=3), defaultdict(list)
            self.hidden = self.first = None

        def on_fit_start(self):
            self.own_weight = [self.layers[0].weight, self.layers[0].bias.detach()]  # these stay the model's

        def on_train_epoch_start(self):
            self.batches, self.largest = [], numpy.zeros(1)

        def training_step(self, batch, batch_idx):
            loss = self.loss(batch) + self.own_weight[1].sum() ** 2
            if self.hidden is not None:
                loss = loss * (1 + self.hidden.abs()) + 0.1 * sum(self.recent)
            self.losses.append(loss)
            self.batches.append(batch_idx)
            self.largest = numpy.maximum(self.largest, loss.item())
            return loss

        def on_train_batch_end(self, *_):
            self.hidden = 0.9 * (self.losses[-1] if self.hidden is None else self.hidden).detach()
            self.recent.append(self.losses[-1].item())
            self.counts[len(self.recent)].append(self.trainer.global_step)

        def on_train_epoch_end(self):
            self.log("mean", torch.stack(self.losses).mean())
            self.log("batches", float(sum(self.batches)))
            self.log("largest", float(self.largest[0]))
            self.log("counts", float(len(self.counts[3])))
            self.losses.clear()

        def on_validation_epoch_end(self):
            # The first validation is the sanity check, of which a restart has none.
            value = self.trainer.callback_metrics["val_loss"].item()
            self.first = value if self.first is None else self.first
            self.log("change", value - self.first)

    class Slows(pl.Callback):
        """Makes the learning rate smaller with each epoch and batch; a signal may have set its flag."""

        def __init__(self):
            self.is_stopped, self.scale = False, 1.0

        def on_train_epoch_start(self, trainer, pl_module):
            self.in_epoch = 0

        def on_train_batch_end(self, trainer, *_):
            self.in_epoch += 1
            self.scale *= 0.99
            trainer.optimizers[0].param_groups[0]["lr"] = 0.01 * self.scale / self.in_epoch
            assert not self.is_stopped
            self.is_stopped = trainer.global_step == 999

    return Setup(Net(), shuffled(size), in_order(), {"callbacks": [Slows()]})


@setup
def changed_by_epochs(pl, size):
    class Growing(Numbers):
        epoch = 0

        def __getitem__(self, index):
            inputs, target = super().__getitem__(index)
            return inputs * (1 + self.epoch), target

    data = Growing(size.samples)

    class Net(net(pl)):
        def on_train_epoch_start(self):
            data.epoch = self.current_epoch
            if self.current_epoch == 1:
                self.layers[0].requires_grad_(False)
            if self.current_epoch == 2:
                self.layers[0].requires_grad_(True)
                self.layers[1].eval()
                self.layers[-1].bias.requires_grad = False

    # DDP waits for gradients of layers that are frozen amid the training.
    arguments = {"strategy": "ddp_find_unused_parameters_true"} if size.ranks > 1 else {}
    # Worker processes get the data set as it is then.
    return Setup(
        with_batch_norm(Net()), DataLoader(data, BATCH_SIZE, shuffle=True, num_workers=1), in_order(), arguments
    )


@setup
def changed_by_hooks(pl, size):
    """What is saved for others: averages in place of weights, and nothing but these."""

    class Averages(pl.Callback):
        def on_save_checkpoint(self, trainer, pl_module, checkpoint):
            checkpoint["state_dict"] = {name: value * 0.5 for name, value in checkpoint["state_dict"].items()}

    class Thin(net(pl)):
        def on_save_checkpoint(self, checkpoint):
            weights = checkpoint["state_dict"]
            checkpoint.clear()
            checkpoint["state_dict"] = weights

        def on_load_checkpoint(self, checkpoint):
            assert next(iter(checkpoint)) == "state_dict"

    return Setup(Thin(), shuffled(size), in_order(), {"callbacks": [Averages()]})


@setup
def changed_arguments(pl, size):
    """A model that reads larger batches with each epoch, and a callback that changes how it is trained."""

    class Net(net(pl)):
        batch_size = BATCH_SIZE // 2

        def train_dataloader(self):
            return DataLoader(Numbers(size.samples), batch_size=self.batch_size, shuffle=True)

    class Plan(pl.Callback):
        def on_train_epoch_start(self, trainer, pl_module):
            trainer.gradient_clip_val = (None, 0.05, None)[trainer.current_epoch]

        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == 4:
                trainer.accumulate_grad_batches = 2

        def on_train_epoch_end(self, trainer, pl_module):
            pl_module.batch_size += 1
            trainer.limit_train_batches -= 1
            trainer.fit_loop.max_epochs = 3

    limits = {"max_epochs": 2, "limit_train_batches": size.batches, "reload_dataloaders_every_n_epochs": 1}
    return Setup(Net(), None, in_order(), {**limits, "callbacks": [Plan()]})


class Average:
    """An average of the weights, as many projects write it."""

    def __init__(self, module):
        self.steps, self.weights = 0, copy.deepcopy(module.state_dict())

    def update(self, module):
        self.steps += 1
        for name, value in module.state_dict().items():
            self.weights[name] = self.weights.get(name, value).to(value.device) * 0.9 + value.detach() * 0.1


class Meter:
    def __init__(self):
        self.total = self.count = 0

    def update(self, value):
        self.total, self.count = self.total + value, self.count + 1


@setup
def plain_objects(pl, size):
    """What it keeps in objects of its own, of which one is larger than what each rank saves."""

    class Net(net(pl)):
        def __init__(self):
            super().__init__()
            self.large = nn.Linear(1024, 1100, bias=False)
            self.average = Average(self)
            self.meters = {"loss": Meter(), "unused": None}

        def training_step(self, batch, batch_idx):
            loss = self.loss(batch) + self.large.weight.square().mean()
            self.meters["loss"].update(loss.item())
            self.log("mean", self.meters["loss"].total / self.meters["loss"].count, sync_dist=True)
            return loss

        def on_train_batch_end(self, *_):
            self.average.update(self)

        def on_train_end(self):
            self.load_state_dict(self.average.weights)

    class Keeps(pl.Callback):
        """An average as a module, beside others that nobody trains."""

        def on_fit_start(self, trainer, pl_module):
            self.average, self.model = copy.deepcopy(pl_module.layers), pl_module
            self.frozen = [nn.Linear(1024, 2200), nn.Sequential(pl_module.layers)]

        def on_train_batch_end(self, trainer, pl_module, *_):
            for average, trained in zip(self.average.parameters(), pl_module.layers.parameters()):
                average.data.mul_(0.9).add_(trained.data, alpha=0.1)

        def on_train_end(self, trainer, pl_module):
            pl_module.layers.load_state_dict(self.average.state_dict())

    return Setup(Net(), shuffled(size), in_order(), {"callbacks": [Keeps()]})
