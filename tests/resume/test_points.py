import pytest

from lightning_sm._resume.points import ask_at_epoch_start, ask_at_save_points, stop_asking
from tests.helpers.tiny import loader, tiny_model
from tests.resume.job import EPOCH, NAMESPACE, pl


class Asks(pl.Callback):
    """Acts at each point, and notes at which points it was asked and acted."""

    def __init__(self):
        self.asked, self.acted = [], []

    def on_train_start(self, trainer, pl_module):
        def place(point):
            return point.value, trainer.global_step

        def is_due(point):
            self.asked.append(place(point))
            return True

        ask_at_save_points(NAMESPACE, trainer, self, is_due, lambda point: self.acted.append(place(point)))

    def on_train_epoch_start(self, trainer, pl_module):
        ask_at_epoch_start(trainer, self)

    def on_train_end(self, trainer, pl_module):
        stop_asking(trainer)


def expected(epochs, accumulate, check_every, check_epochs, max_steps):
    """The points of a fit: after each step that is not the last of its epoch, before validations, between epochs."""
    step = 0
    for epoch in range(epochs):
        if epoch:
            yield "epoch", step
        for batch in range(1, EPOCH + 1):
            if batch % accumulate and batch < EPOCH:
                continue
            step += 1
            if step == max_steps:
                return
            if check_every and (epoch + 1) % check_epochs == 0 and batch % check_every == 0:
                yield "validation", step
            elif batch < EPOCH:
                yield "batch", step


@pytest.mark.parametrize("accumulate", [1, 2, 3])
@pytest.mark.parametrize(
    ("check_every", "check_epochs", "max_steps"),
    [(0, 1, -1), (3, 1, -1), (4, 1, -1), (EPOCH, 1, -1), (EPOCH, 2, -1), (EPOCH, 1, 10)],
)
def test_where_a_fit_can_be_saved(accumulate, check_every, check_epochs, max_steps):
    asks = Asks()
    more = {"val_check_interval": check_every, "check_val_every_n_epoch": check_epochs} if check_every else {}
    trainer = pl.Trainer(
        accelerator="cpu", devices=1, logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, num_sanity_val_steps=0, callbacks=[asks], max_epochs=2, max_steps=max_steps,
        accumulate_grad_batches=accumulate, **more,
    )  # fmt: skip
    trainer.fit(tiny_model(pl), loader(), loader() if check_every else None)
    # In a validation within an accumulation the gradients of its first batches would be lost.
    assert asks.asked == list(expected(2, accumulate, check_every, check_epochs, max_steps))
    assert asks.acted == asks.asked
