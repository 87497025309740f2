"""What one GPU can show, each part in processes of its own under torchrun: ``train.py FOLDER PART …``.

Two ranks are two hosts that share the GPU. Unless ``TESTS_ACCELERATOR`` is ``gpu`` the same parts run without one.
"""

import gc
import importlib.util
import os
import statistics
import time
import traceback
from pathlib import Path
from unittest import mock

import pytorch_lightning as pl
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import lightning_sm
from lightning_sm._export.inference import model_fn
from lightning_sm._resume.fits import forget_fits
from tests.helpers.accelerator import ON_GPU, ranks
from tests.helpers.callbacks import Crash, crashing
from tests.helpers.sharded import gathered_weights, save_after, shard, strategy_of

_OURS = {
    "DDPStrategy": lightning_sm.SMDDPStrategy,
    "FSDPStrategy": lightning_sm.SMDDPFSDPStrategy,
    "ModelParallelStrategy": lightning_sm.SMDDPModelParallelStrategy,
    "DeepSpeedStrategy": lightning_sm.SMDDPDeepSpeedStrategy,
}
_EPOCHS = 2
_RANK, _WORLD = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
_DEVICE = "cuda" if ON_GPU else "cpu"
# The save that a fit is continued from, and the step at which it is interrupted.
_SAVED, _CRASHED = 5, 7


class Net(pl.LightningModule):
    """Layers with dropout, whose steps draw random numbers on the device.

    Args:
        width: The width of the layers.
        first_drawn: How many random numbers of the device are drawn before the fit.
    """

    def __init__(self, width=16, first_drawn=0):
        super().__init__()
        torch.manual_seed(7)
        self.layers = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.3), nn.Tanh(), nn.Linear(width, width))
        self.first_drawn = first_drawn
        self.first, self.losses, self.weights, self.ends, self.data = None, [], {}, [], loader(width)

    def configure_model(self):
        shard(self, [self.layers[0], self.layers[3]])

    def forward(self, inputs):
        return self.layers(inputs)

    def on_train_start(self):
        self.first = self.trainer.global_step

    def training_step(self, batch, batch_index):
        (inputs,) = batch
        outputs = self.layers(inputs + 0.1 * torch.rand_like(inputs)).float()
        loss = nn.functional.mse_loss(outputs, inputs.float().flip(1))
        self.log("loss", loss)
        return loss

    def on_train_batch_end(self, outputs, *_):
        # The last step of the device has ended.
        self.losses.append(float(outputs["loss"]))
        self.ends.append(time.perf_counter())

    def on_train_end(self):
        self.weights = gathered_weights(self.trainer.strategy, self)

    def configure_optimizers(self):
        # With 1e-8, which is zero in fp16, the first step would give NaN.
        return torch.optim.Adam(self.parameters(), lr=0.01, eps=1e-4)


def loader(width=16, samples=32, batch_size=4):
    inputs = torch.randn(samples, width, generator=torch.Generator().manual_seed(5))
    return DataLoader(TensorDataset(inputs), batch_size=batch_size)


def fit(module, kind, own=None, **arguments):
    """Train, by Lightning alone unless ``own`` has the settings of the ``sagemaker`` group; return the trainer."""
    pl.seed_everything(3)
    if own is not None:
        forget_fits()  # as in a new process
    if module.first_drawn:
        torch.rand(module.first_drawn, device=_DEVICE)
    given = {
        **ranks(_WORLD),
        "strategy": strategy_of(kind, pl.strategies if own is None else _OURS),
        "max_epochs": _EPOCHS,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
        "deterministic": True,
        **arguments,
    }
    if own is not None:
        for told in ("devices", "num_nodes", "enable_checkpointing"):  # by the launcher, and the job
            given.pop(told, None)
        given = lightning_sm.trainer_settings(sagemaker={"export": False, "report": False, **own}, **given)
    trainer = pl.Trainer(**given)
    trainer.fit(module, module.data)
    return trainer


def group(folder):
    """What the process group is, and what its collectives give."""
    trainer = fit(Net(), "ddp", {"checkpoint_dir": f"{folder}/saves-{_RANK}"})
    strategy = trainer.strategy
    value = torch.tensor([1.5, 2.5 + _RANK], device=strategy.root_device)
    dist.all_reduce(value)
    strategy.barrier()
    return {
        "backend": dist.get_backend(),
        "device": strategy.root_device.type,
        "sum": value.tolist(),
        "mean": strategy.reduce(torch.tensor(2.5 + _RANK, device=strategy.root_device), reduce_op="mean").item(),
        "gathered": strategy.all_gather(value).flatten().tolist(),
        "object": strategy.broadcast({"step": trainer.global_step}, src=_WORLD - 1),
    }


def equal(folder, kind, precisions):
    """The numbers of fits by Lightning alone and with us, for each precision."""
    return {each: _told(_equal, folder, kind, each) for each in precisions.split(",")}


def _equal(folder, kind, precision):
    found = {}
    for whose, own in (("plain", None), ("ours", {"checkpoint_dir": f"{folder}/saves-{_RANK}-{precision}"})):
        module = Net()
        fit(module, kind, own, precision=precision)
        found[whose] = {"losses": module.losses, "weights": module.weights, "backend": dist.get_backend()}
    return found


def resume(folder, kind):
    """Fits that nothing interrupts, and such as are continued from a save within an epoch, by the way of saving."""
    save_after(_SAVED)
    return {way: _told(_resume, folder, kind, way) for way in ("sync", "async")}


def _resume(folder, kind, way):
    found, own = {}, {"async_save": way == "async"}
    for name, crash, place in (("whole", None, "whole"), ("crashed", _CRASHED, "saves"), ("continued", None, "saves")):
        # A new process has drawn another number of random numbers.
        module = Net(first_drawn=3 * (name == "continued"))
        settings = {**own, "checkpoint_dir": f"{folder}/{way}-{place}"}
        try:
            trainer = fit(module, kind, settings, callbacks=[crashing(pl, crash)])
        except Crash:
            continue
        drawn = float(torch.rand((), device=_DEVICE))
        found[name] = {"weights": module.weights, "drawn": drawn, "first": module.first, "step": trainer.global_step}
    return found


def _told(play, *given):
    """What a case has found, or its error: the next one is played all the same."""
    try:
        return play(*given)
    except Exception as error:
        traceback.print_exc()
        return {"error": f"{type(error).__name__}: {error}"}


def async_content(folder):
    """The weights at the step of a save, and those that a background save has written while training went on."""
    save_after(_SAVED)
    seen = {}

    class Wide(Net):
        def on_train_batch_end(self, *given):
            super().on_train_batch_end(*given)
            if self.trainer.global_step == _SAVED:
                seen["weights"] = {name: value.cpu().clone() for name, value in self.state_dict().items()}

    module = Wide(2048)
    with mock.patch("lightning_sm._resume.series.Series.remove_replaced"):
        fit(module, "ddp", {"checkpoint_dir": f"{folder}/saves", "async_save": True})
    (path,) = Path(folder, "saves").glob(f"*/fit-0/step-{_SAVED}.ckpt")
    saved = torch.load(path, map_location="cpu", weights_only=False)["state_dict"]
    return {
        "megabytes": round(path.stat().st_size / 1e6),
        "equal": all(torch.equal(value, seen["weights"][name]) for name, value in saved.items()),
        "went_on": any(
            not torch.equal(value.cpu(), seen["weights"][name]) for name, value in module.state_dict().items()
        ),
    }


def export(folder):
    """For each format the largest difference of what it gives on a CPU to what the model gives on its device."""
    found = {}
    formats = dict.fromkeys(("state_dict", "checkpoint", "torchscript", "exported_program"), "torch")
    for name, package in {**formats, "safetensors": "safetensors", "onnx": "onnxruntime"}.items():
        if importlib.util.find_spec(package) is None:
            found[name] = f"{package} is not installed"
            continue
        found[name] = _told(_export, folder, name)
    return found


def _export(folder, name):
    module, place = Net(), f"{folder}/model-{name}"
    own = {"checkpoint_dir": f"{folder}/saves-{name}", "model_dir": place, "export": name}
    fit(module, "ddp", {**own, "export_example_input": [4, 16]})
    inputs = torch.randn(4, 16)
    module.eval()
    with torch.no_grad():
        expected = module(inputs.to(module.device)).cpu()
        found = model_fn(place)(inputs)
    # A checkpoint is Lightning's own, with its tensors where they were.
    if name == "state_dict":
        assert {value.device.type for value in torch.load(f"{place}/model.pt").values()} == {"cpu"}
    return float((found - expected).abs().max())


def cost(folder):
    """Memory and the time of a step, with everything that a job gets, over those of Lightning alone."""
    width, samples = (2048, 25_600) if ON_GPU else (256, 3_200)
    data = loader(width, samples, 128)
    steps, memory = {}, {}
    for turn in range(6):
        whose = "ours" if turn % 2 else "plain"
        own = {"checkpoint_dir": f"{folder}/saves-{turn}", "report": True} if turn % 2 else None
        module = Net(width)
        module.data = data
        gc.collect()
        if ON_GPU:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        fit(module, "ddp", own, max_epochs=1, deterministic=False)
        seconds = [after - before for before, after in zip(module.ends[10:], module.ends[11:])]
        steps.setdefault(whose, []).append(statistics.median(seconds))
        if ON_GPU:
            memory.setdefault(whose, []).append(torch.cuda.max_memory_allocated())
    return {
        "milliseconds": 1000 * statistics.median(steps["plain"]),
        "step": statistics.median(steps["ours"]) / statistics.median(steps["plain"]),
        "memory": max(memory["ours"]) / max(memory["plain"]) if memory else None,
    }


PARTS = {each.__name__: each for each in (group, equal, resume, async_content, export, cost)}


def main(folder, part, *arguments):
    return PARTS[part](folder, *arguments)
