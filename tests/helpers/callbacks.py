"""Callbacks that change a training, for set-ups of either library. Nothing of this package is imported for them."""

__all__ = ["unfreezing", "warming"]


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
