"""The program of the rehearsals: trains, tests and trains again in each way, and writes ranks and results.

It stands in a source directory beside ``tiny.py``, and works under every launcher.
"""

import argparse
import dataclasses
import json
import os
import socket
import sys

# Before anything is imported: some libraries set variables.
VARIABLES = dict(os.environ)
CONFIG = os.path.join(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"), "input", "config")


def read_config_files():
    return {
        name: json.load(open(os.path.join(CONFIG, name), encoding="utf-8"))
        for name in sorted(os.listdir(CONFIG))
        if name.endswith("config.json") or name == "hyperparameters.json"
    }


def arguments_of(way, options):
    """The trainer's arguments for one way to say "this runs on SageMaker"."""
    import lightning_sm

    given = {"accelerator": "cpu", "max_epochs": 1, "enable_progress_bar": False, "enable_model_summary": False}
    # Where no launcher starts the processes of a host, somebody has to say how many there are.
    devices = {"devices": options.devices} if options.devices else {}
    backend = {"process_group_backend": options.backend} if options.backend else {}
    if way == "strategy" or backend:
        given["strategy"] = lightning_sm.SMDDPStrategy(**backend)
    if way == "settings":
        return lightning_sm.trainer_settings(**given, **devices, logger=False)
    return {**given, **devices, "logger": False, "enable_checkpointing": False}


def train(pl, way, options):
    import torch.distributed as dist
    from tiny import tiny_model, train_twice

    trainer = pl.Trainer(**arguments_of(way, options))
    results = train_twice(trainer, tiny_model(pl))
    # A world of one process needs none.
    environment = getattr(trainer.strategy, "cluster_environment", None)
    joined = dist.is_initialized()
    return {
        "strategy": type(trainer.strategy).__name__,
        "environment": None if environment is None else told_by(environment),
        "trainer": [trainer.global_rank, trainer.world_size, trainer.local_rank, trainer.node_rank],
        "distributed": [dist.get_rank(), dist.get_world_size(), dist.get_backend()] if joined else None,
        "num_nodes": trainer.num_nodes,
        **results,
    }


def told_by(environment):
    return {
        "class": type(environment).__name__,
        "ranks": [environment.global_rank(), environment.world_size(), environment.local_rank()],
        "node_rank": environment.node_rank(),
        "main": f"{environment.main_address}:{environment.main_port}",
    }


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--backend")
    parser.add_argument("--devices", type=int)
    parser.add_argument("--note", help="a hyperparameter that only has to arrive")
    options = parser.parse_args()

    import lightning.pytorch as pl
    from lightning.pytorch.utilities import rank_zero_only

    import lightning_sm

    job = lightning_sm.TrainingJob.resolve()
    seen = {
        "hostname": socket.gethostname(),
        "variables": VARIABLES,
        "files": read_config_files(),
        "topology": dataclasses.asdict(lightning_sm.Topology.resolve()),
        "rank_before_joining": vars(rank_zero_only)["rank"],
        "current_host": job.current_host,
        "note": options.note,
        "ways": {way: train(pl, way, options) for way in ("settings", "strategy")},
    }
    standin = sys.modules.get("smdistributed.dataparallel.torch.torch_smddp")
    seen["collectives"] = len(standin.calls) if standin else 0
    local_rank = seen["ways"]["settings"]["trainer"][2]
    folder = VARIABLES.get("SM_OUTPUT_DATA_DIR", "/opt/ml/output/data")
    with open(os.path.join(folder, f"{seen['hostname']}-{local_rank}.json"), "w", encoding="utf-8") as file:
        json.dump(seen, file)


if __name__ == "__main__":
    main()
