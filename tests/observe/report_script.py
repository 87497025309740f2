"""A script that trains in a job, and ends in the way that ``HOW`` names."""

import os
import signal
import sys

from lightning_sm import trainer_settings
from lightning_sm._lightning import installed_namespaces
from tests.helpers.tiny import loader, tiny_model

PL = installed_namespaces()[-1].module()


class Ends(PL.Callback):
    def __init__(self, how):
        self.how = how

    def on_train_batch_end(self, trainer, *_, **__):
        # In the second epoch, after a checkpoint.
        if trainer.global_step != 12:
            return
        if self.how == "raise":
            raise RuntimeError("no <i>way</i>, my_password=hunter2-hunter2")
        if self.how == "exit":
            sys.exit(3)
        if self.how in ("term", "kill"):
            os.kill(os.getpid(), signal.SIGTERM if self.how == "term" else signal.SIGKILL)


def main():
    # No argument: a restarted job has those of its first start.
    how = os.environ["HOW"]
    arguments = trainer_settings(
        sagemaker={"save_every": "1ms"},
        accelerator="cpu",
        max_epochs=3,
        logger=False,
        callbacks=[Ends(how)],
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    PL.Trainer(**arguments).fit(tiny_model(PL), loader(), loader())
    if how == "later":
        raise ValueError("after the fit")


if __name__ == "__main__":
    main()
