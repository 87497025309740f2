"""Trains by torch_xla on the CPU in the processes of torchrun, as a job on Trn1 does, and writes what came out.

Arguments: results folder, way (``xla``; ``cpu`` for the same by Lightning's DDP alone; ``stopped`` and ``resumed``
for ``xla`` in two tries).
"""

from pathlib import Path

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from tests.helpers.tiny import loader, tiny_model, weights

pl = installed_namespaces()[0].module()
_QUIET = {"enable_progress_bar": False, "enable_model_summary": False, "logger": False}


class _Stop(pl.Callback):
    def on_train_batch_end(self, trainer, *_):
        if trainer.global_step == 6:
            raise RuntimeError("stopped after step 6")


def main(folder, way):
    arguments = {**_QUIET, "max_epochs": 3, "accumulate_grad_batches": 2, "gradient_clip_val": 0.5}
    if way == "cpu":
        # DDP, because Lightning shuffles for each distributed strategy, and not for a single device.
        trainer = pl.Trainer(accelerator="cpu", devices=1, strategy="ddp", enable_checkpointing=False, **arguments)
    else:
        settings = {"save_every": "1ms", "checkpoint_dir": str(Path(folder).parent / f"saves-{way == 'xla'}")}
        callbacks = [_Stop()] if way == "stopped" else []
        trainer = pl.Trainer(**lightning_sm.trainer_settings(sagemaker=settings, callbacks=callbacks, **arguments))
    model = tiny_model(pl)
    trainer.fit(model, loader(), loader())
    return {
        "weights": weights(model),
        "metrics": {name: float(value) for name, value in trainer.callback_metrics.items()},
        "tested": trainer.test(model, loader(), verbose=False)[0]["test_loss"],
        "device": str(trainer.strategy.root_device) if way == "cpu" else str(model.layers[0].weight.device),
        "accelerator": type(trainer.accelerator).__name__,
        "strategy": type(trainer.strategy).__name__,
        "objects": [trainer.strategy.broadcast(value) for value in ({"a": [1, None]}, "x")],
    }
