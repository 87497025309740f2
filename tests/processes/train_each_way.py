"""Trains, tests and trains on, in each way to say "this runs on SageMaker", and writes what this process saw.

Arguments: results folder, namespace, processes per host, hosts, ways (``plain`` is Lightning without us).
"""

import importlib
import json
import os
import sys
from pathlib import Path

from tests.helpers.plain import end_process_group
from tests.helpers.tiny import tiny_model, train_twice


def main(folder, namespace, processes, hosts, *ways):
    if ways != ("plain",):
        import lightning_sm
    pl = importlib.import_module(namespace)
    rank_zero_only = importlib.import_module(f"{namespace}.utilities").rank_zero_only
    seen = {"rank_after_import": rank_zero_only.rank, "ways": {}}
    import torch.distributed as dist

    is_external = any(name in os.environ for name in ("TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK"))
    # Ours take what the launcher made; Lightning's own strategy has to be told.
    told = {"devices": int(processes), "num_nodes": int(hosts)}
    by_us = {} if is_external else {"devices": int(processes)}
    arguments_of = {
        "plain": lambda: {"strategy": "ddp", **told},
        "class": lambda: {"strategy": lightning_sm.SMDDPStrategy(), **by_us},
        "name": lambda: {"strategy": "smddp", **by_us},
        "plugin": lambda: {"strategy": "ddp", "plugins": [lightning_sm.SageMakerEnvironment()], **told},
    }
    for way in ways:
        trainer = pl.Trainer(
            accelerator="cpu",
            max_epochs=1,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            **arguments_of[way](),
        )
        results = train_twice(trainer, tiny_model(pl))
        # Read here without our help, which the way "plain" must not load; Lightning 1.5 has another name.
        strategy = trainer.strategy if hasattr(trainer, "strategy") else trainer.training_type_plugin
        environment = strategy.cluster_environment
        seen["ways"][way] = {
            "strategy": type(strategy).__name__,
            "environment": type(environment).__name__,
            "ranks": [environment.global_rank(), environment.world_size(), environment.local_rank()],
            "node_rank": environment.node_rank(),
            "distributed": [dist.get_rank(), dist.get_world_size(), dist.get_backend()],
            "trainer": [trainer.global_rank, trainer.world_size, trainer.local_rank, trainer.node_rank],
            "num_nodes": strategy.num_nodes,
            "rank_zero_only": rank_zero_only.rank,
            **results,
        }
    Path(folder, f"rank-{dist.get_rank()}.json").write_text(json.dumps(seen))
    if ways == ("plain",):
        end_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
