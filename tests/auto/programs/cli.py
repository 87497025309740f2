"""A project with LightningCLI(Model, Data)."""

from seen import arguments, of_trainer, write

folder, pl = arguments()

import importlib  # noqa: E402

from tests.helpers.tiny import loader, tiny_model, weights  # noqa: E402


class Model(type(tiny_model(pl))):
    def __init__(self, lr: float = 0.05):
        super().__init__()
        self.save_hyperparameters()


class Data(pl.LightningDataModule):
    def train_dataloader(self):
        return loader()


cli = importlib.import_module(f"{pl.__name__}.cli").LightningCLI(Model, Data)
write(folder, cli.trainer.global_rank, weights=weights(cli.model), **of_trainer(cli.trainer))
