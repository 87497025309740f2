"""A model of a few numbers and its data, made for whichever of Lightning's namespaces a test uses."""

import torch
from torch.utils.data import DataLoader, TensorDataset

__all__ = ["loader", "tiny_model", "train_twice", "weights", "with_batch_norm"]


def loader(samples=16, batch_size=2, **options):
    generator = torch.Generator().manual_seed(5)
    inputs = torch.randn(samples, 4, generator=generator)
    return DataLoader(TensorDataset(inputs, inputs.sum(dim=1, keepdim=True)), batch_size=batch_size, **options)


def tiny_model(pl):
    """A ``LightningModule`` of the namespace ``pl`` whose first weights are always the same."""

    class TinyModel(pl.LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(7)
            self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

        def _loss(self, batch):
            inputs, targets = batch
            return torch.nn.functional.mse_loss(self.layers(inputs), targets)

        def training_step(self, batch, batch_index):
            loss = self._loss(batch)
            self.log("train_loss", loss, on_step=False, on_epoch=True, sync_dist=True)
            return loss

        def validation_step(self, batch, batch_index):
            self.log("val_loss", self._loss(batch), sync_dist=True)
            self.log("val_count", torch.tensor(batch_index, device=self.device), sync_dist=True, reduce_fx="sum")

        def test_step(self, batch, batch_index):
            self.log("test_loss", self._loss(batch), sync_dist=True)

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.05, momentum=0.9)

    return TinyModel()


def train_twice(trainer, model):
    """Train an epoch, test, and train another one; return what came out."""
    trainer.fit(model, loader(), loader())
    after_one = weights(model)
    tested = trainer.test(model, loader(), verbose=False)
    trainer.fit_loop.max_epochs = trainer.current_epoch + 1  # Lightning 1.5 counts the last epoch back
    trainer.fit(model, loader(), loader())
    results = {"after_one": after_one, "after_two": weights(model), "tested": tested[0]["test_loss"]}
    return {"steps": trainer.global_step, **results}


def weights(model):
    """Every weight as a number that JSON keeps exactly."""
    return [number for parameter in model.parameters() for number in parameter.detach().flatten().tolist()]


def with_batch_norm(model):
    """A small model whose first layer is followed by batch norm."""
    model.layers.insert(1, torch.nn.BatchNorm1d(8))
    return model
