"""A training run that writes checkpoints at chosen moments, and runs that go on from one of them."""

import torch
from torch import nn
from torch.utils.data import DataLoader

from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import callback_class
from tests.helpers import setups
from tests.helpers.setups import SETUPS

NAMESPACE = installed_namespaces()[-1]
pl = NAMESPACE.module()
ModelCheckpoint = pl.callbacks.ModelCheckpoint


class Numbers(setups.Numbers):
    """``size`` samples of four numbers, each with its index."""

    def __init__(self, size=24, noisy=False):
        super().__init__(size, noisy)

    def __getitem__(self, index):
        return super().__getitem__(index)[0], index


class Model(pl.LightningModule):
    """Has dropout, and writes down which samples it was trained on, with which epoch, batch index and step."""

    def __init__(self, scheduler=None):
        super().__init__()
        self.layer = nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 1))
        self.scheduler = scheduler
        self.seen = []
        self.events = []

    def training_step(self, batch, batch_idx):
        samples = (
            batch if isinstance(batch, list) and torch.is_tensor(batch[0]) else [part for b in batch for part in b]
        )
        indices = [index for part in samples[1::2] for index in part.tolist()]
        self.seen.append((self.trainer.current_epoch, batch_idx, self.trainer.global_step, indices))
        return sum(self.layer(part).square().mean() for part in samples[::2])

    def validation_step(self, batch, batch_idx):
        self.log("val_loss", self.layer(batch[0]).square().mean() + 0 * torch.rand(1).sum())

    def on_validation_start(self):
        if not self.trainer.sanity_checking:
            self.events.append(("validation", self.trainer.current_epoch, self.trainer.global_step))

    def on_train_epoch_end(self):
        self.events.append(("epoch end", self.trainer.current_epoch, self.trainer.global_step))

    def configure_optimizers(self):
        optimizer = torch.optim.SGD(self.parameters(), lr=0.01, momentum=0.9)
        if self.scheduler == "steps":
            return [optimizer], [{"scheduler": torch.optim.lr_scheduler.StepLR(optimizer, 3, 0.7), "interval": "step"}]
        if self.scheduler == "metric":
            plateau = torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, factor=0.5, threshold=10.0)
            return {"optimizer": optimizer, "lr_scheduler": {"scheduler": plateau, "monitor": "val_loss"}}
        return optimizer


class Saver(pl.Callback):
    """Writes a checkpoint in one hook, at the count-th call of it."""

    def __init__(self, folder, moments):
        self.folder = folder
        self.moments = moments
        self.calls = {}

    def _at(self, hook, trainer):
        if trainer.sanity_checking:
            return
        self.calls[hook] = self.calls.get(hook, 0) + 1
        if (hook, self.calls[hook]) in self.moments:
            trainer.save_checkpoint(path_of(self.folder, hook, self.calls[hook]))

    def on_train_batch_start(self, trainer, *args, **kwargs):
        self._at("on_train_batch_start", trainer)

    def on_train_batch_end(self, trainer, *args, **kwargs):
        self._at("on_train_batch_end", trainer)

    def on_validation_batch_end(self, trainer, *args, **kwargs):
        self._at("on_validation_batch_end", trainer)

    def on_validation_end(self, trainer, *args, **kwargs):
        self._at("on_validation_end", trainer)

    def on_train_epoch_start(self, trainer, *args, **kwargs):
        self._at("on_train_epoch_start", trainer)

    def on_train_epoch_end(self, trainer, *args, **kwargs):
        self._at("on_train_epoch_end", trainer)


# Lightning 1.5 and 1.6 have no such base, and call all callbacks before the model.
_Last = getattr(pl.callbacks, "Checkpoint", pl.Callback)


class LastSaver(Saver, _Last):
    """Saves after all hooks of the model, as Lightning's own checkpoint callbacks do."""


def path_of(folder, hook, count):
    """Where the checkpoint of a moment is."""
    return str(folder / f"{hook}-{count}.ckpt")


def shuffled(batch_size=4, workers=0, **kwargs):
    """A loader that shuffles: six batches of four samples."""
    return DataLoader(Numbers(**kwargs), batch_size=batch_size, shuffle=True, num_workers=workers)


def train(
    train_loader, *, val_loader=None, saver=None, checkpoint=None, ours=True, seed=7, scheduler=None, **arguments
):
    """Train a new model with a new trainer, as a new process would, and return the model.

    Args:
        train_loader: Makes the loader, or loaders, of the training data.
        val_loader: The loader for validation, or None for no validation.
        saver: A :class:`Saver`.
        checkpoint: The checkpoint to go on from.
        ours: Whether ``DataPosition`` takes part.
        seed: What ``seed_everything`` is given.
        scheduler: The model's scheduler of the learning rate.
        arguments: Further arguments of the ``Trainer``.
    """
    pl.seed_everything(seed)
    callbacks = [callback_class(NAMESPACE, "DataPosition")()] if ours else []
    arguments = {"max_epochs": 3, "devices": 1, "limit_val_batches": 0 if val_loader is None else 1.0, **arguments}
    if val_loader is not None:
        arguments.setdefault("num_sanity_val_steps", 1)
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=callbacks + ([] if saver is None else [saver]),
        **arguments,
    )
    model = Model(scheduler)
    # Something that a resumed run has drawn more of than the run before it.
    torch.rand(3 if checkpoint else 2)
    # Lightning 1.x lets a model hold its trainer by a weak reference only.
    object.__setattr__(model, "trained_by", trainer)
    trainer.fit(model, train_loader(), val_loader, ckpt_path=checkpoint)
    return model


def same_weights(first, second):
    """Whether two models are bit for bit the same."""
    one, other = first.state_dict(), second.state_dict()
    return all(torch.equal(one[name], other[name]) for name in one)


class Logged(pl.loggers.CSVLogger):
    """Keeps what was logged at which step, in memory."""

    def __init__(self):
        super().__init__("unused", version=0)
        self.lines = []

    def log_metrics(self, metrics, step=None):
        self.lines.append((step, dict(metrics)))

    def log_hyperparams(self, params=None):
        pass

    def save(self):
        pass

    def finalize(self, status):
        pass


def train_setup(name, size, savers=(), checkpoint=None, seed=7, **more):
    """Train a set-up as a new process would, and return its trainer.

    Args:
        name: Its name in the library.
        size: A :class:`~tests.helpers.setups.Size`.
        savers: Callbacks that write checkpoints.
        checkpoint: The checkpoint to go on from.
        seed: What ``seed_everything`` is given.
        more: Further arguments of the ``Trainer``.
    """
    pl.seed_everything(seed)
    made = SETUPS[name](pl, size)
    arguments = {"max_epochs": size.epochs, "devices": 1, **made.arguments, **more}
    own = [callback_class(NAMESPACE, "DataPosition")(), *(savers or [LastSaver(None, [])])]
    trainer = pl.Trainer(
        accelerator="cpu",
        logger=Logged(),
        log_every_n_steps=1,
        enable_checkpointing=_Last is not pl.Callback or any(isinstance(each, ModelCheckpoint) for each in own),
        num_sanity_val_steps=1 if made.val is not None else 0,
        enable_progress_bar=False,
        enable_model_summary=False,
        callbacks=arguments.pop("callbacks", []) + own,
        **arguments,
    )
    # Something that a resumed run has drawn more of than the run before it.
    torch.rand(3 if checkpoint else 2)
    trainer.fit(made.model, made.train, made.val, ckpt_path=checkpoint)
    return trainer


def weights_of(trainer):
    """Every weight and buffer as a number that JSON keeps exactly."""
    return {name: value.tolist() for name, value in trainer.lightning_module.state_dict().items()}
