"""Callbacks that change a training, for set-ups of either library. Nothing of this package is imported for them."""

import copy

__all__ = ["Crash", "averaging", "crashing", "unfreezing", "warming"]


def averaging(pl):
    """A moving average as projects write it: it is validated, and comes into the model at the end."""

    class Average(pl.Callback):
        def __init__(self):
            self.average = None
            self.trained = None

        def on_train_batch_end(self, trainer, pl_module, *_):
            if self.average is None:
                self.average = copy.deepcopy(pl_module.layers.state_dict())
            for name, value in pl_module.layers.state_dict().items():
                self.average[name] = 0.9 * self.average[name].to(value.device) + 0.1 * value

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

    return Average()


class Crash(BaseException):
    """Ends a fit as the loss of its container does."""


def crashing(pl, step):
    """A callback that crashes before the batch after this step."""

    class Crashing(pl.Callback):
        def on_train_batch_start(self, trainer, *_):
            if trainer.global_step == step:
                raise Crash

    return Crashing()


def unfreezing(pl, lr):
    """A callback that trains the first layer from the second epoch on."""

    class Unfreezing(pl.callbacks.BaseFinetuning):
        def freeze_before_training(self, pl_module):
            self.freeze(pl_module.layers[0])

        def finetune_function(self, pl_module, epoch, optimizer):
            if epoch == 1:
                self.unfreeze_and_add_param_group(pl_module.layers[0], optimizer, lr=lr)

    return Unfreezing()


def warming(pl):
    """A callback that makes the inputs of each batch larger than those of the one before."""

    class Warming(pl.Callback):
        def __init__(self):
            self.count = 0

        def on_train_batch_start(self, trainer, pl_module, batch, *_):
            self.count += 1
            batch[0].mul_(1 + 0.02 * self.count)

        def state_dict(self):
            return {"count": self.count}

        def load_state_dict(self, state):
            self.count = state["count"]

    return Warming()
