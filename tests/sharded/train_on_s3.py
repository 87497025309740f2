"""Trains by FSDP2 with checkpoints at URLs, saved by s3torchconnector, and writes what happened.

Arguments: results folder, URLs to train with one after the other, each with ``=STEP`` where the
second process dies at that step. A URL ``export:…`` also exports the best checkpoint. ``given:…`` is a ``ckpt_path``
for a training whose own checkpoints are local; its error is a result. In ``refused:…`` S3 refuses what
s3torchconnector sends.
"""

import os
import tempfile

import torch

from lightning_sm import trainer_settings
from lightning_sm._lightning import installed_namespaces
from lightning_sm._resume.fits import forget_fits
from lightning_sm._resume.storage import Storage
from lightning_sm.callbacks import ModelExport, auto_resume
from lightning_sm.errors import CheckpointError
from tests.helpers.sharded import save_after, sharded_model, strategy_of
from tests.helpers.tiny import loader

PL = next(each for each in installed_namespaces() if each.name == "lightning.pytorch").module()
RANK = int(os.environ["RANK"])
EPOCHS = 3
# What was at the URL of a folder when the upload of its manifest began.
before_manifests = {}
# The names of what was uploaded file by file.
uploaded = set()


class Progress(PL.Callback):
    def __init__(self, dies_at):
        self.dies_at, self.steps, self.started_at, self.after_epochs = dies_at, 0, None, []

    def state_dict(self):
        return {}  # what it has seen is this process's own

    def on_train_start(self, trainer, module):
        self.started_at = trainer.global_step

    def on_train_batch_start(self, trainer, *_):
        if trainer.global_step == self.dies_at and RANK == 1:
            os._exit(9)

    def on_train_batch_end(self, trainer, *_):
        self.steps += 1

    def on_train_epoch_end(self, trainer, module):
        self.after_epochs.append(own(module))
        module.log("score", -abs(trainer.current_epoch - 1.0))


def observe_uploads():
    upload = Storage.upload

    def observed(storage, path, name):
        uploaded.add(name)
        if name == "manifest.json":
            before_manifests[storage.url] = [file.name for file in storage.files()]
        upload(storage, path, name)

    Storage.upload = observed


def plugins(refused):
    from s3torchconnector import S3ClientConfig
    from s3torchconnector.lightning import S3LightningCheckpoint

    config = S3ClientConfig(force_path_style=True)
    endpoint = os.environ["DENIED" if refused else "AWS_ENDPOINT_URL"]
    return [S3LightningCheckpoint("us-east-1", config, endpoint=endpoint)]


def trainer_for(directory, *callbacks, refused=False):
    forget_fits()  # as in a new process
    PL.seed_everything(3)
    trainer = PL.Trainer(
        **trainer_settings(
            sagemaker={"checkpoint_dir": directory, "report": False, "log_metrics": False, "export": False},
            trainer_class=PL.Trainer, max_epochs=EPOCHS, accelerator="cpu", callbacks=list(callbacks),
            strategy=strategy_of("fsdp2", PL.strategies), logger=False, enable_progress_bar=False,
            enable_model_summary=False, plugins=plugins(refused),
        )
    )  # fmt: skip
    save_after(4, 8)
    return trainer


def model_to_train():
    model = sharded_model(PL)
    model.configure_optimizers = lambda: torch.optim.Adam(model.parameters(), lr=0.01)
    return model


def fit(url, folder, dies_at=None, ckpt_path=None, refused=False):
    progress, more = Progress(dies_at), []
    if url.startswith("export:"):
        url = url[len("export:") :]
        best = PL.callbacks.ModelCheckpoint(f"{url}/best", "best-{epoch}", monitor="score", mode="max", save_top_k=1)
        more = [best, ModelExport(os.path.join(folder, "exported"), export="state_dict", export_weights="best")]
    trainer = trainer_for(url, progress, *more, refused=refused)
    trainer.fit(model_to_train(), loader(32, 4, shuffle=True), ckpt_path=ckpt_path)
    (resume,) = (each for each in trainer.callbacks if isinstance(each, auto_resume.AutoResumeMixin))
    return {
        "resumed_from": resume.resumed_from,
        "started_at": progress.started_at,
        "steps": progress.steps,
        "weights": own(trainer.lightning_module),
        "after_epochs": progress.after_epochs,
    }


def attempt(url, folder):
    what, _, url = url.partition(":")
    try:
        if what == "refused":
            return fit(url, folder, refused=True)
        return fit(tempfile.mkdtemp(dir=os.environ["SAGEMAKER_BASE_DIR"]), folder, ckpt_path=url)
    except CheckpointError as error:
        return str(error)


def own(module):
    """Every weight that this rank has."""
    return [number for each in module.parameters() for number in each.detach().to_local().flatten().tolist()]


def main(folder, *urls):
    observe_uploads()
    fits, copies = [], []
    for given in urls:
        if given.startswith(("given:", "refused:")):
            fits.append(attempt(given, folder))
            # Rank 0 removes copies.
            if RANK == 0 and given.startswith("given:"):
                copies += left()
        else:
            url, _, step = given.partition("=")
            fits.append(fit(url, folder, int(step) if step else None))
    return {"fits": fits, "before_manifests": before_manifests, "uploaded": sorted(uploaded), "left": copies}


def left():
    """What is left of copies in the temporary directory."""
    return [name for name in os.listdir(tempfile.gettempdir()) if name.startswith("lightning-sm-")]
