"""A training loop with Lightning Fabric that runs on a laptop and, unchanged, in a SageMaker training job.

A job that is interrupted starts the program again, from its first line: it goes on from its latest checkpoint.
"""

import argparse
import os

import torch
from lightning.fabric import Fabric  # or: from lightning_fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from torch.utils.data import DataLoader, TensorDataset

import lightning_sm


def make_samples(count: int = 256) -> TensorDataset:
    """Points of a sine; a project reads those of a channel, ``lightning_sm.job().channel("training")``."""
    inputs = torch.rand(count, 1, generator=torch.Generator().manual_seed(0)) * 6 - 3
    return TensorDataset(inputs, inputs.sin())


def main() -> None:
    """Train, save after each epoch, and write the model."""
    # SageMaker passes hyperparameters as arguments.
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--lr", type=float, default=0.02)
    given = parser.parse_args()

    job, samples = lightning_sm.job(), make_samples()
    fabric = Fabric(**lightning_sm.fabric_settings(loggers=CSVLogger("logs", flush_logs_every_n_steps=1)))
    fabric.launch()

    fabric.seed_everything(0)
    model = torch.nn.Sequential(torch.nn.Linear(1, 16), torch.nn.Tanh(), torch.nn.Linear(16, 1))
    model, optimizer = fabric.setup(model, torch.optim.Adam(model.parameters(), lr=given.lr))

    state = {"model": model, "optimizer": optimizer, "epoch": 0}
    path = lightning_sm.latest_checkpoint(fabric)
    if path is not None:
        fabric.load(path, state)
        fabric.print(f"going on with epoch {state['epoch']} from {path}")

    for epoch in range(state["epoch"], given.epochs):
        # So the order of its samples does not depend on the epochs before it, which a restart does not train again.
        fabric.seed_everything(epoch)
        batches = fabric.setup_dataloaders(DataLoader(samples, batch_size=16, shuffle=True))
        for inputs, targets in batches:
            optimizer.zero_grad()
            loss = torch.nn.functional.mse_loss(model(inputs), targets)
            fabric.backward(loss)
            optimizer.step()
        mean = fabric.all_reduce(loss.detach())
        fabric.log("loss", mean, step=epoch)
        fabric.print(f"epoch {epoch}: loss {mean:.4f}")
        state["epoch"] = epoch + 1
        fabric.save(os.path.join(job.checkpoint_dir or "checkpoints", f"epoch-{epoch}.ckpt"), state)

    if fabric.is_global_zero and job.model_dir is not None:
        torch.save(model.module.state_dict(), os.path.join(job.model_dir, "model.pt"))


if __name__ == "__main__":
    main()
