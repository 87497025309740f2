"""Records the environment that each real launcher makes: ``python -m tests.toolkits.record [NAME ...]``.

It rehearses each of :data:`tests.toolkits.launches.LAUNCHES` (about six minutes for all) and writes, for each rank,
the variables and files that it found, and the rank and world size of ``torch.distributed`` as the truth. The tests
of ``test_recorded.py`` feed these to ``Topology`` without any process.
"""

import json
import sys
import tempfile
from pathlib import Path

from .launches import LAUNCHES
from .running import rehearse_launch

__all__ = ["RECORDED", "as_recorded"]

RECORDED = Path(__file__).parent / "recorded"

_PREFIXES = ("SM_", "SAGEMAKER_", "OMPI_COMM_WORLD_", "TORCHELASTIC_", "MASTER_", "GROUP_", "ROLE_", "SMDATAPARALLEL_")
_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "NODE_RANK", "CURRENT_HOST", "OMPI_UNIVERSE_SIZE"}
# Of the machine that recorded, and nothing that a topology is read from.
_LEFT_OUT = {"TORCHELASTIC_ERROR_FILE", "SM_NUM_CPUS", "SM_NUM_GPUS", "SM_NUM_NEURONS"}


def as_recorded(seen):
    """What is kept of what one rank wrote."""
    # The last way is the strategy itself, which joins also where a world has but one process.
    way = list(seen["ways"].values())[-1]
    rank, world_size, _ = way["distributed"]
    variables = {
        name: text
        for name, text in sorted(seen["variables"].items())
        if (name.startswith(_PREFIXES) or name in _NAMES) and name not in _LEFT_OUT
    }
    if "SM_TRAINING_ENV" in variables:
        variables["SM_TRAINING_ENV"] = _without_machine(variables["SM_TRAINING_ENV"])
    return {
        "hostname": seen["hostname"],
        "variables": variables,
        "files": seen["files"],
        "truth": {"global_rank": rank, "world_size": world_size},
    }


def _without_machine(text):
    try:
        content = json.loads(text)
    except ValueError:  # cut at a "#" on its way to another host, which is a part of the record
        return text
    counts = {"num_cpus": 1, "num_gpus": 0, "num_neurons": 0}
    return json.dumps({**content, **{name: counts[name] for name in counts if name in content}}, sort_keys=True)


def main(names):
    RECORDED.mkdir(exist_ok=True)
    for name in names or LAUNCHES:
        with tempfile.TemporaryDirectory() as folder:
            done = rehearse_launch(name, Path(folder))
        ranks = {rank: as_recorded(seen) for rank, seen in sorted(done.ranks.items())}
        content = {"options": list(LAUNCHES[name].options), "ranks": ranks}
        path = RECORDED / f"{name}.json"
        path.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        print(f"{path.name}: {len(ranks)} ranks", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
