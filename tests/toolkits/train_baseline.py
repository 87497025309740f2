"""Trains without this package, or with it, for ``test_stock_lightning.py``: ``--way`` says how.

``bare`` is Lightning told nothing, ``impatient`` ours with an environment that waits for 3 seconds.
"""

import argparse
import json
import os
import socket
import time
from pathlib import Path

import lightning.pytorch as pl


def arguments_of(way, hosts):
    if way == "ours":
        import lightning_sm

        return lightning_sm.trainer_settings(accelerator="cpu", **common())
    if way == "impatient":
        import lightning_sm

        # Each host has an /etc of its own.
        own_name = f"127.0.0.1 localhost {socket.gethostname()}\n"
        Path("/etc/hosts").write_text(own_name)
        environment = lightning_sm.SageMakerEnvironment(resolve_timeout=3)
        return {**common(), "accelerator": "cpu", "num_nodes": hosts, "devices": 1, "plugins": [environment]}
    return {"accelerator": "cpu", **common()}


def common():
    quiet = {"enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
    return {"max_epochs": 1, "logger": False, **quiet}


def main():
    try:
        from tests.helpers.tiny import loader, tiny_model
    except ImportError:  # in a rehearsal's source directory
        from tiny import loader, tiny_model

    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", help="where to write rank-N.json")
    parser.add_argument("--way")
    parser.add_argument("--hosts", type=int, default=1)
    parser.add_argument("--occupy", type=int, help="a port that something else listens on")
    parser.add_argument("--missing", help="a host that does nothing")
    options = parser.parse_args()
    if options.way != "ours":
        os.environ["LIGHTNING_SM_AUTO"] = "0"
    if socket.gethostname() == options.missing:
        time.sleep(600)
    launched_as = os.environ.get("RANK")
    with socket.socket() as other:
        if options.occupy:
            other.bind(("", options.occupy))
            other.listen()
        trainer = pl.Trainer(**arguments_of(options.way, options.hosts))
        trainer.fit(tiny_model(pl), loader(), loader())
    seen = {"ranks": [trainer.global_rank, trainer.world_size, trainer.node_rank], "steps": trainer.global_step}
    if options.folder:
        Path(options.folder, f"rank-{launched_as}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main()
