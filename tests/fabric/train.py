"""Trains with Fabric: plainly, or as a project with this package; saves, resumes, and fails where it is told to.

``--how`` is ``plain`` (Lightning's own ``ddp``), ``unchanged`` (as on a laptop), ``settings``, or ``command`` for
``fabric run``. ``--fail`` lets rank 1 raise before that step. The variable ``STOP_BEFORE`` ends the program before that
step, with code 3: a restart of a job has the same arguments.
"""

import argparse
import importlib
import json
import os
import sys
from pathlib import Path

import torch

from tests.helpers.plain import end_process_group
from tests.helpers.tiny import loader, weights


def read_arguments():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, nargs="?", default=os.environ.get("SM_OUTPUT_DATA_DIR"))
    parser.add_argument("--namespace", default="lightning.fabric")
    parser.add_argument("--how", default="settings")
    parser.add_argument("--devices", type=int)
    parser.add_argument("--name", default="step-{}.ckpt")
    parser.add_argument("--fail", type=int)
    # Some launchers add it to the arguments of each process.
    parser.add_argument("--rank")
    sys.argv.append(f"--rank={os.environ.get('RANK', 0)}")
    return parser.parse_args()


def make_fabric(given):
    module = importlib.import_module(given.namespace)
    devices = {} if given.devices is None else {"devices": given.devices}
    logger = importlib.import_module(f"{given.namespace}.loggers").CSVLogger("logs")
    settings = {"accelerator": "cpu", "loggers": logger, **devices}
    if given.how == "plain":
        settings["strategy"] = "ddp"
    elif given.how != "unchanged":
        import lightning_sm

        settings = lightning_sm.fabric_settings(**settings)
    return module.Fabric(**settings)


def main():
    given = read_arguments()
    fabric = make_fabric(given)
    if given.how != "command":
        fabric.launch()
    fabric.seed_everything(3)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.2), torch.nn.Linear(8, 1))
    model, optimizer = fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
    state = {"model": model, "optimizer": optimizer, "step": 0}
    uses_package = given.how in ("settings", "command")
    path = resume(fabric, state) if uses_package else None
    first = state["step"]
    for step, (inputs, targets) in enumerate(fabric.setup_dataloaders(loader(samples=24))):
        if step < first:
            continue
        if step == given.fail and fabric.global_rank == 1:
            raise ValueError(f"no step {step} on rank 1")
        if str(step) == os.environ.get("STOP_BEFORE"):
            sys.exit(3)
        torch.manual_seed(100 * step + fabric.global_rank)
        optimizer.zero_grad()
        fabric.backward(torch.nn.functional.mse_loss(model(inputs), targets))
        optimizer.step()
        state["step"] = step + 1
        if uses_package:
            import lightning_sm

            fabric.log_dict({"step": step})
            fabric.save(os.path.join(lightning_sm.job().checkpoint_dir, given.name.format(step)), state)
    seen = {
        "world": [fabric.world_size, getattr(fabric.strategy, "num_nodes", 1), fabric.node_rank],
        "strategy": type(fabric.strategy).__name__,
        "weights": weights(model),
        "resumed": [path, first],
        "logger": fabric.logger.root_dir,
    }
    (given.folder / f"rank-{fabric.global_rank}.json").write_text(json.dumps(seen))
    if given.how == "plain":
        end_process_group()


def resume(fabric, state):
    import lightning_sm

    path = lightning_sm.latest_checkpoint(fabric)
    if path is not None:
        fabric.load(path, state)
    return path


main()
