"""Programs to rehearse."""

from pathlib import Path
from typing import List

import pytest

from tests.helpers.rehearsal import Rehearsed, command_line, run_rehearsal

# With a child in a session of its own, as torchrun's workers are.
SLEEP = """
import subprocess, sys, time
subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)", sys.argv[-1]], start_new_session=True)
print("asleep", flush=True)
time.sleep(600)
"""
PROGRAMS = {
    "plain.py": """
import os, sys
host = os.environ["SM_CURRENT_HOST"]
print("arguments", sys.argv[1:], flush=True)
print(f"files {sorted(os.listdir('.'))}", flush=True)
data = os.path.join(os.environ.get("SAGEMAKER_BASE_DIR", "/opt/ml"), "input", "data")
print(f"data {sorted(os.listdir(data))}", flush=True)
with open(os.path.join(os.environ["SM_MODEL_DIR"], "by-" + host), "w") as file:
    file.write(os.environ.get("GREETING", ""))
""",
    # Prints what the real launcher gave it and what a sum over all ranks is. Works under every launcher.
    "ranks.py": """
import json, os, time
env = os.environ
if "RANK" not in env and "OMPI_COMM_WORLD_RANK" in env:
    env.update(RANK=env["OMPI_COMM_WORLD_RANK"], WORLD_SIZE=env["OMPI_COMM_WORLD_SIZE"])
import torch.distributed as dist, torch
dist.init_process_group("gloo")
total = torch.ones(1) * (1 + dist.get_rank())
dist.all_reduce(total)
told = {"global_rank": dist.get_rank(), "world_size": dist.get_world_size(), "sum": total.item()}
print("lightning_sm topology: " + json.dumps(told), flush=True)
dist.barrier()
time.sleep(0.2)  # gloo's threads must be through, as in train_each_way
dist.destroy_process_group()
""",
    "fail.py": """
import os, time
if os.environ["SM_CURRENT_HOST"].endswith("2"):
    raise ValueError("no such column")
time.sleep(600)
""",
    "sleep.py": SLEEP,
    # As SLEEP, but writes without pause, and faster than a terminal shows it.
    "talk.py": SLEEP.replace("time.sleep(600)\n", "while True:\n    print('x' * 50)\n"),
    # Counts to 100 in checkpoints; it is slow until it has been started again.
    "count.py": """
import json, os, time
with open("/opt/ml/input/config/checkpointconfig.json") as file:
    folder = json.load(file)["LocalPath"]
path = os.path.join(folder, "count")
start = int(open(path).read()) if os.path.exists(path) else 0
print(f"starts at {start}", flush=True)
for number in range(start + 1, 101):
    time.sleep(0.02 if start else 0.1)
    if os.environ["SM_CURRENT_HOST"] == "algo-1":
        with open(path + ".new", "w") as file:
            file.write(str(number))
        os.replace(path + ".new", path)
        print(f"counted {number}", flush=True)
""",
}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    folder = tmp_path / "source"
    folder.mkdir()
    for name, text in PROGRAMS.items():
        (folder / name).write_text(text)
    return folder


@pytest.fixture
def command(source: Path) -> List[str]:
    """The command up to where a test adds its own options."""
    return command_line(source)


@pytest.fixture
def rehearse(command: List[str]):
    """Run a rehearsal to its end in a process of its own, as users do."""

    def run(*arguments: object, exit_code: int = 0, **variables: str) -> Rehearsed:
        return run_rehearsal([*command, "--json", *map(str, arguments)], exit_code=exit_code, **variables)

    return run
