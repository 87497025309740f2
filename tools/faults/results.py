"""Set-ups of one fit that has results besides weights, as in ``tests.helpers.setups``: found values, files."""

import json
import os

import torch
from torch.utils.data import DataLoader

from lightning_sm._sagemaker.job import TrainingJob
from tests.helpers.setups import Numbers, Setup, in_order, net, shuffled

__all__ = ["RESULT_SETUPS"]


def learning_rate_finder(pl, size):
    class Net(net(pl)):
        def __init__(self):
            super().__init__()
            self.lr = 0.5

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=self.lr, momentum=0.9)

    finder = pl.callbacks.LearningRateFinder(1e-4, 0.01, num_training_steps=24, early_stop_threshold=None)
    return Setup(Net(), shuffled(size), in_order(), {"callbacks": [finder]})


def batch_size_finder(pl, size):
    class Net(net(pl)):
        def __init__(self):
            super().__init__()
            self.batch_size = 1

        def train_dataloader(self):
            # The finder sets the attribute and asks for the loader again.
            return DataLoader(Numbers(size.samples), batch_size=self.batch_size, shuffle=True)

        def val_dataloader(self):
            return in_order()

    # From two it doubles once, to the size of the other set-ups.
    finder = pl.callbacks.BatchSizeFinder("power", steps_per_trial=2, init_val=2, max_trials=2)
    return Setup(Net(), None, None, {"callbacks": [finder]})


def files_of_the_end(pl, size):
    class Files(pl.Callback):
        """Writes a part of the model, and what was measured, beside the exported model."""

        def on_train_end(self, trainer, pl_module):
            if trainer.is_global_zero:
                torch.save(pl_module.layers[0].state_dict(), _model_file("encoder.pt"))

        def on_fit_end(self, trainer, pl_module):
            if trainer.is_global_zero:
                found = {name: float(value) for name, value in trainer.callback_metrics.items()}
                with open(_model_file("measured.json"), "w") as file:
                    json.dump({"epoch": trainer.current_epoch, "step": trainer.global_step, **found}, file)

    return Setup(net(pl)(), shuffled(size), in_order(), {"callbacks": [Files()]})


def _model_file(name):
    return os.path.join(TrainingJob.resolve().model_dir, name)


#: What is trained, by name.
RESULT_SETUPS = {made.__name__: made for made in (learning_rate_finder, batch_size_finder, files_of_the_end)}
