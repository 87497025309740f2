"""Models that log in many ways, for tests of what is read from their source."""

import torch

__all__ = ["EXACT", "UNREADABLE", "model_class"]


def model_class(pl, name):
    return vars(_models(pl))[name]


def _models(pl):
    class Base(pl.LightningModule):
        def __init__(self):
            super().__init__()
            self.layer = torch.nn.Linear(4, 1)

        def loss(self, batch):
            return torch.nn.functional.mse_loss(self.layer(batch[0]), batch[1])

        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            self.log("loss", loss)
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", self.loss(batch))

        def test_step(self, batch, batch_idx):
            self.log("test_loss", self.loss(batch))

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), lr=0.01)

    class Plain(Base):
        pass

    class Forks(Base):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            self.log("a", loss, on_epoch=True)
            self.log("b", loss, on_step=False, on_epoch=True)
            self.log("c", loss, True, False)
            self.log("e", loss, prog_bar=True, logger=False)
            self.log("f", loss, on_step=None, on_epoch=None)
            self.log_dict({"g": loss, "h": loss}, on_step=True, on_epoch=True)
            self.log(value=loss, name="i j")
            return loss

        def validation_step(self, batch, batch_idx):
            self.log("val_a", self.loss(batch), on_step=True)
            self.log("val_b", self.loss(batch), on_step=True, on_epoch=False)

    class Stages(Base):
        prefix = "net"

        def training_step(self, batch, batch_idx):
            return self.step(batch, "train")

        def validation_step(self, batch, batch_idx):
            self.step(batch, stage="val")

        def test_step(self, batch, batch_idx):
            self.step(batch)

        def step(self, batch, stage="test"):
            loss = self.loss(batch)
            name = f"{stage}/loss"
            self.log(name, loss, on_step=(stage == "train"), on_epoch=True)
            for kind in ("mae", "mse"):
                self.log(f"{stage}/{kind}", loss)
                self.log(self.prefix + "/" + stage + "/" + kind, loss)
            if stage != "train":
                metrics = {f"{stage}_x": loss, "y of " + stage: loss}
                self.log_dict(metrics)
            elif stage in ("train", "other"):
                self.log("only_train", loss)
            return loss

    class Inherits(Stages):
        def validation_step(self, batch, batch_idx):
            super().validation_step(batch, batch_idx)
            self.log("more", 1.0)

        def training_step(self, batch, batch_idx):
            loss = super(Stages, self).training_step(batch, batch_idx)
            return loss

        def on_train_epoch_end(self, *args):
            self.log("at_end", 2.0)

        def on_train_batch_start(self, *args):
            self.log("at_start", 2.0)

        def never_called(self):
            self.log("never", 1.0)

    class Manual(Base):
        def __init__(self):
            super().__init__()
            self.automatic_optimization = False

        def training_step(self, batch, batch_idx):
            optimizer = self.optimizers()
            optimizer.zero_grad()
            loss = self.loss(batch)
            with torch.no_grad():
                self.log("in with", loss)
            try:
                self.manual_backward(loss)
            finally:
                self.log("in finally", loss)
            optimizer.step()
            self._finish(loss)

        def _finish(self, loss, *, name="finished"):
            self.log(name, loss)

    class Computed(Base):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            self.log(f"loss_{batch_idx % 1}", loss)
            return loss

    class Mutated(Base):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            metrics = {"a": loss}
            metrics.update(b=loss)
            self.log_dict(metrics)
            return loss

    class Branches(Base):
        def training_step(self, batch, batch_idx):
            name = "a"
            if batch_idx > 100:
                name = "b"
            loss = self.loss(batch)
            self.log(name, loss)
            return loss

    class Aliases(Base):
        def training_step(self, batch, batch_idx):
            log = self.log
            loss = self.loss(batch)
            log("a", loss)
            return loss

    class Later(Base):
        stage = "first"

        def on_train_start(self):
            self.stage = "second"

        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            self.log(self.stage, loss)
            return loss

    class Options(Base):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            self.log("a", loss, **{"on_epoch": True})
            return loss

    class Numbers(Base):
        def training_step(self, batch, batch_idx):
            loss = self.loss(batch)
            for index in (0, 1):
                self.log(f"x{index + 1}", loss)
            return loss

    return type("Models", (), dict(locals()))


EXACT = ("Plain", "Forks", "Stages", "Inherits", "Manual")
UNREADABLE = ("Computed", "Mutated", "Branches", "Aliases", "Later", "Options", "Numbers")
