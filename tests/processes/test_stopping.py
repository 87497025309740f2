"""Real signals to real processes. ``tests/resume/test_graceful_stop.py`` has the rest, within one."""

import json
import re
import signal
from pathlib import Path

import pytest

from lightning_sm._export import load_file
from lightning_sm._lightning import installed_namespaces
from tests.helpers.processes import free_port, local_rendezvous
from tests.helpers.program import Program

pytestmark = pytest.mark.full

_SCRIPT = Path(__file__).parent / "train_until_stopped.py"


def stopped_at(mark, folder, *words, launcher=()):
    """A program in a fake container that got SIGTERM when it had said that it is there, and has ended."""
    program = Program(folder, _SCRIPT, *words).start(launcher=launcher)
    program.until(lambda: f"\nat {mark}\n" in program.output)
    program.process.send_signal(signal.SIGTERM)
    return program.wait()


def saved_and_exported(program):
    """The newest save of the fit, of which the exported model has the weights."""
    records = [json.loads(path.read_text()) for path in program.folder.rglob("fit-0/step-*.json")]
    newest = max(records, key=lambda record: record["number"])
    (path,) = program.folder.rglob(f"fit-0/{newest['name']}")
    saved = load_file(str(path), weights_only=False)
    assert newest["step"] == saved["global_step"]
    exported = load_file(str(program.folder / "model" / "model.pt"), weights_only=True)
    assert all((value == exported[name]).all() for name, value in saved["state_dict"].items())
    assert json.loads((program.folder / "model" / "model.json").read_text())["global_step"] in (
        saved["global_step"],
        saved["global_step"] - 1,  # Lightning 1.5 has not counted the step that has just been taken
    )
    return saved


def test_sigterm_in_an_epoch_saves_exports_and_ends_with_143(tmp_path):
    stopped = stopped_at("step 5", tmp_path / "ml", "--namespace", installed_namespaces()[0].name)
    assert stopped.code == 143, stopped.output
    assert saved_and_exported(stopped)["global_step"] >= 5
    assert "at end" not in stopped.output
    assert "at validation" not in stopped.output
    assert not (stopped.folder / "output" / "failure").exists()


@pytest.mark.parametrize("is_terminated", [True, False])
def test_a_program_ends_with_processes_that_lightning_forks(tmp_path, is_terminated):
    words = [] if is_terminated else ["--max_runtime", "1s"]
    address = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": free_port()}
    stopped = Program(tmp_path / "ml", _SCRIPT, "--forks", *words, **address).start()
    if is_terminated:
        stopped.until(lambda: "\nat step 5\n" in stopped.output)
        stopped.process.send_signal(signal.SIGTERM)
    stopped.wait(60)
    assert stopped.code == (143 if is_terminated else 0), stopped.output
    assert (stopped.folder / "model" / "model.json").exists()
    assert "stopped</title>" in (stopped.folder / "output" / "data" / "report.html").read_text()
    assert "at end" not in stopped.output
    assert not (stopped.folder / "output" / "failure").exists()


def test_sigterm_to_torchrun_saves_once_for_both_ranks(tmp_path):
    """With workers of data loaders, which torchrun signals as well."""
    launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", *local_rendezvous()]
    stopped = stopped_at("step 20", tmp_path / "ml", "--workers", "2", launcher=launcher)
    assert stopped.code != 0  # torchrun's own code, whatever its workers end with
    assert stopped.output.count("Saved ") == 1, stopped.output
    assert "killed by signal" not in stopped.output
    assert "exitcode: -9" not in stopped.output
    step = saved_and_exported(stopped)["global_step"]
    # Both ranks left after the same step.
    steps = [int(step) for step in re.findall(r"^at step (\d+)", stopped.output, re.M)]
    assert steps.count(step - 1) == 2
    assert step not in steps
