"""Each set-up of the library, interrupted at several moments and resumed, ends as the run that nothing interrupted."""

import pytest
import torch

from lightning_sm.callbacks import callback_class
from tests.helpers.interrupted import NAMESPACE, Saver, path_of, pl
from tests.helpers.setups import SETUPS, Size

pytestmark = pytest.mark.skipif(NAMESPACE.version < (1, 6), reason="Lightning 1.5 goes on with the next epoch")

SIZE = Size(epochs=3, batches=6)
# In an epoch of six batches: within the second, at its end, within its first validation, after the first.
MOMENTS = [
    ("on_train_batch_end", 3),
    ("on_train_batch_end", 10),
    ("on_validation_batch_end", 1),
    ("on_train_epoch_end", 1),
]


# Lightning 1.5 and 1.6 have no such base, and call all callbacks before the model.
Last = getattr(pl.callbacks, "Checkpoint", pl.Callback)


class LastSaver(Saver, Last):
    """Saves after all hooks of the model, as Lightning's own checkpoint callbacks do."""


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


def train(name, saver=None, checkpoint=None):
    """Train a set-up as a new process would; return its trainer."""
    pl.seed_everything(7)
    made = SETUPS[name](pl, SIZE)
    arguments = {"max_epochs": SIZE.epochs, **made.arguments}
    own = [callback_class(NAMESPACE, "DataPosition")(), saver or LastSaver(None, [])]
    trainer = pl.Trainer(
        accelerator="cpu",
        devices=1,
        logger=Logged(),
        log_every_n_steps=1,
        enable_checkpointing=Last is not pl.Callback,
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


def weights(trainer):
    return {name: value.tolist() for name, value in trainer.lightning_module.state_dict().items()}


@pytest.mark.parametrize("name", sorted(SETUPS))
def test_a_resumed_run_ends_as_an_uninterrupted_one(tmp_path, name):
    saver = LastSaver(tmp_path, MOMENTS)
    whole = train(name, saver)
    written = [moment for moment in MOMENTS if moment[1] <= saver.calls.get(moment[0], 0)]
    assert len(written) >= 3
    for moment in written:
        resumed = train(name, checkpoint=path_of(tmp_path, *moment))
        assert weights(resumed) == weights(whole), moment
        assert resumed.global_step == whole.global_step, moment
        logged = resumed.logger.lines
        assert logged == whole.logger.lines[len(whole.logger.lines) - len(logged) :], moment
