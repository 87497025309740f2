"""Fits once after a number of seconds, and writes the group that it has joined.

Arguments: results folder, strategy, the late rank of two, how late it is in seconds after the other one.
"""

import importlib
import time
from pathlib import Path
from typing import Any, Dict

from tests.helpers.tiny import loader, tiny_model


def main(folder, strategy, late_rank, seconds):
    import lightning_sm
    from lightning_sm._lightning import installed_namespaces

    pl = importlib.import_module(installed_namespaces()[0].name)
    import torch.distributed as dist

    environment = lightning_sm.SageMakerEnvironment(log_interval=1.0)
    rank = environment.node_rank() if environment.topology.global_rank is None else environment.global_rank()
    punctual = Path(folder, "punctual")
    if rank == int(late_rank):
        deadline = time.monotonic() + 60  # processes start late on a busy machine
        while not punctual.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(float(seconds))
    given: Dict[str, Any] = {
        "num_nodes": environment.topology.num_nodes,
        "devices": environment.topology.local_world_size or 1,
    }
    if strategy == "smddp":
        given = {"strategy": lightning_sm.SMDDPStrategy(cluster_environment=environment)}
    else:
        given.update(strategy=strategy, plugins=[environment])
    trainer = pl.Trainer(
        accelerator="cpu",
        max_epochs=1,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        **given,
    )
    punctual.touch()
    trainer.fit(tiny_model(pl), loader())
    time.sleep(1.5)  # as long as a line would need
    from lightning_sm._distributed.rendezvous import _thread

    seen = {"size": dist.get_world_size(), "waits": _thread is not None and _thread.is_alive()}
    return seen
