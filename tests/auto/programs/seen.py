"""What a program shows of its training, for the test that has started it. It imports nothing of this package."""

import importlib
import json
import sys
from pathlib import Path

__all__ = ["arguments", "write"]


def arguments():
    """Take the folder for the results and the namespace from the command line; call ``auto`` where it asks for that."""
    folder, name, way = (sys.argv.pop(1) for _ in range(3))
    if way == "line":
        import lightning_sm

        lightning_sm.auto()
    return Path(folder), importlib.import_module(name)


def write(folder, rank, **values):
    """Write what this rank has seen."""
    modules = [name for name in sys.modules if name.startswith("lightning_sm.")]
    seen = {"modules": modules, **values}
    (folder / f"rank-{rank}.json").write_text(json.dumps(seen, default=str))


def of_trainer(trainer):
    """What a ``Trainer`` has become."""
    strategy = trainer.strategy
    return {
        "world": [trainer.world_size, trainer.num_nodes],
        "strategy": type(strategy).__name__,
        "environment": type(getattr(strategy, "cluster_environment", None)).__name__,
        "callbacks": [type(callback).__name__ for callback in trainer.callbacks],
        "logger": None if trainer.logger is None else [type(trainer.logger).__name__, trainer.logger.save_dir],
        "checkpoints": [type(callback).__name__ for callback in trainer.checkpoint_callbacks],
        "epochs": trainer.current_epoch,
        "steps": trainer.global_step,
    }
