"""Libraries that train by Lightning, interrupted: their models end with the weights of plain Lightning.

``nox -s libraries`` runs each in an environment of its own.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.helpers.processes import environ_of
from tests.helpers.program import Program

PROGRAMS = Path(__file__).parent / "programs"
LIBRARIES = {
    "pytorch_forecasting": "pytorch_forecasting_tft",
    "darts": "darts_models",
    "neuralforecast": "neuralforecast_models",
    "chemprop": "chemprop_ensemble",
    "scvi": "scvi_model",
    "nequip": "nequip_train",
    "litdata": "litdata_streams",
    "monai": "monai_transforms",
}
PATH = os.pathsep.join([str(PROGRAMS), str(PROGRAMS.parents[2])])


def weights(folder):
    states, steps = torch.load(folder / "weights.pt", weights_only=True)
    return {f"{i}.{name}": each for i, state in enumerate(states) for name, each in state.items()}, steps


@pytest.mark.full
@pytest.mark.parametrize("library", LIBRARIES)
def test_an_interrupted_program_of_a_library_ends_with_equal_weights(library, tmp_path):
    if importlib.util.find_spec(library) is None:
        pytest.skip(f"{library} is not installed; nox -s libraries")
    script = PROGRAMS / f"{LIBRARIES[library]}.py"
    plain = tmp_path / "plain"
    plain.mkdir()
    subprocess.run([sys.executable, script], cwd=plain, env=environ_of(PYTHONPATH=PATH), check=True, timeout=200)
    expected, steps = weights(plain)
    for name, after, by in (("whole", 0, ""), ("early", steps // 3, "SIGKILL"), ("late", steps - 5, "SIGTERM")):
        folder = tmp_path / name
        program = Program(folder, script, PYTHONPATH=PATH)
        # Not below the directories that SageMaker keeps.
        program.cwd = folder / "code"
        program.cwd.mkdir(parents=True)
        program.start(KILL_AFTER=after, KILL_BY=by).wait(200)
        if after:
            assert program.code == (-9 if by == "SIGKILL" else 143), program.output[-3000:]
            program.run()
        assert program.code == 0, program.output[-3000:]
        found, again = weights(program.cwd)
        assert found.keys() == expected.keys()
        tensors = {name: each for name, each in found.items() if torch.is_tensor(each)}
        assert [name for name, each in tensors.items() if not torch.equal(each, expected[name])] == []
        assert again < steps or by != "SIGTERM"
