"""Set-ups with callbacks, metrics and checkpoints, as in ``tests.helpers.setups``."""

import copy
import os

import torch
import torchmetrics
from torch import nn

from lightning_sm._sagemaker.job import TrainingJob
from tests.helpers.setups import Setup, batch_norm_net, in_order, net, shuffled

__all__ = ["CALLBACK_SETUPS"]

CALLBACK_SETUPS = {}


def setup(function):
    """Add a function to this part of the library under its name."""
    CALLBACK_SETUPS[function.__name__] = function
    return function


# --- metrics of an epoch


def _with_means(pl):
    class Net(net(pl)):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            self.log("train_loss", loss, on_step=True, on_epoch=True, sync_dist=True)
            self.log("train_most", loss.detach(), on_step=False, on_epoch=True, reduce_fx="max", sync_dist=True)
            return loss

    return Net


@setup
def epoch_metrics(pl, size):
    return Setup(_with_means(pl)(), shuffled(size), in_order())


@setup
def stopping_on_epoch_mean(pl, size):
    stop = pl.callbacks.EarlyStopping("train_loss_epoch", patience=1, min_delta=0.5, check_on_train_epoch_end=True)
    return Setup(_with_means(pl)(), shuffled(size), None, {"callbacks": [stop]})


@setup
def plateau_on_epoch_mean(pl, size):
    class Net(_with_means(pl)):
        def configure_optimizers(self):
            optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
            scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.7, threshold=0.3)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": scheduler, "monitor": "train_loss_epoch"}}

    return Setup(Net(), shuffled(size))


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
def several_val_loaders(pl, size):
    class Net(net(pl)):
        def validation_step(self, batch, batch_idx, dataloader_idx=0):
            self.log("val_loss", self.loss(batch), sync_dist=True)

    return Setup(Net(), shuffled(size), [in_order(2), in_order(3)], {"val_check_interval": 0.5})


# --- averages of weights


@setup
def stochastic_weight_averaging(pl, size):
    average = pl.callbacks.StochasticWeightAveraging(swa_lrs=0.02, swa_epoch_start=1, annealing_epochs=1)
    return Setup(batch_norm_net(pl), shuffled(size), in_order(), {"callbacks": [average]})


@setup
def weight_averaging(pl, size):
    return Setup(batch_norm_net(pl), shuffled(size), in_order(), {"callbacks": [pl.callbacks.WeightAveraging()]})


@setup
def ema_weight_averaging(pl, size):
    average = pl.callbacks.EMAWeightAveraging(decay=0.9, update_starting_at_step=3)
    options = {"callbacks": [average], "val_check_interval": 0.5}
    return Setup(net(pl)(), shuffled(size), in_order(), options)


@setup
def pruning(pl, size):
    model = net(pl)()
    prune = pl.callbacks.ModelPruning(
        "l1_unstructured", parameters_to_prune=[(model.layers[0], "weight")], amount=0.25, verbose=0
    )
    return Setup(model, shuffled(size), in_order(), {"callbacks": [prune]})


@setup
def handwritten_average(pl, size):
    class Average(pl.Callback):
        """Validates with averaged weights, and leaves them in the model at the end."""

        def __init__(self):
            self.average = None
            self.trained = None

        def on_train_batch_end(self, trainer, pl_module, *_):
            if self.average is None:
                self.average = copy.deepcopy(pl_module.layers.state_dict())
            for name, value in pl_module.layers.state_dict().items():
                self.average[name] = 0.9 * self.average[name] + 0.1 * value

        def on_validation_start(self, trainer, pl_module):
            if self.average is not None:
                self.trained = copy.deepcopy(pl_module.layers.state_dict())
                pl_module.layers.load_state_dict(self.average)

        def on_validation_end(self, trainer, pl_module):
            if self.trained is not None:
                pl_module.layers.load_state_dict(self.trained)
                self.trained = None

        def on_train_end(self, trainer, pl_module):
            pl_module.layers.load_state_dict(self.average)

        def state_dict(self):
            return {"average": self.average}

        def load_state_dict(self, state):
            self.average = state["average"]

    return Setup(net(pl)(), shuffled(size), in_order(4), {"callbacks": [Average()]})


# --- what changes the training


@setup
def finetuning(pl, size):
    class Unfreezing(pl.callbacks.BaseFinetuning):
        def freeze_before_training(self, pl_module):
            self.freeze(pl_module.layers[0])

        def finetune_function(self, pl_module, epoch, optimizer):
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.layers[0], optimizer, lr=0.005)

    class Net(net(pl)):
        def configure_optimizers(self):
            parameters = filter(lambda parameter: parameter.requires_grad, self.parameters())
            return torch.optim.SGD(parameters, lr=0.01, momentum=0.9)

    return Setup(Net(), shuffled(size), in_order(), {"callbacks": [Unfreezing()]})


@setup
def callback_with_state(pl, size):
    class Warming(pl.Callback):
        """Makes each gradient larger than the one before."""

        def __init__(self):
            self.count = 0

        def on_before_optimizer_step(self, trainer, pl_module, *_):
            self.count += 1
            for parameter in pl_module.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(1 + 0.02 * self.count)

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    return Setup(net(pl)(), shuffled(size), None, {"callbacks": [Warming()], "gradient_clip_val": 1.0})


@setup
def callbacks_of_the_model(pl, size):
    class Net(_with_means(pl)):
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
