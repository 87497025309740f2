"""Models exported from sharded training: each kind of strategy, each format, the last and the best weights."""

import pytest
import torch

from tests.helpers.processes import Job
from tests.helpers.sharded import KINDS, runs_here
from tests.projects.sharded_nets import Parts
from tests.sharded.export_each_kind import GRAPHS

safetensors = pytest.importorskip("safetensors.torch")
pytestmark = [pytest.mark.full, pytest.mark.timeout(600)]
SHARDED = [kind for kind in KINDS if kind != "ddp" and runs_here(kind)]
WEIGHTS = ("last", "best")
# The file that Lightning writes with FSDP and FSDP2 keeps each name of a shared tensor as a tensor of its own.
WRITTEN_TWICE = [(kind, "best") for kind in ("fsdp_full", "fsdp2_full")]


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    kinds = ",".join(["ddp", *SHARDED])
    Job(folder, "tests.sharded.export_each_kind", kinds, timeout=400).torchrun(1, 2).results(2)
    return folder


def state_dict(folder, weights):
    """What the export of a state dict holds; plain torch loads it without code of ours."""
    return torch.load(folder / f"{weights}-state_dict" / "model.pt", weights_only=True)


def assert_equal(found, expected, tolerance=1e-6):
    assert set(found) == set(expected)
    for name, value in expected.items():
        if isinstance(value, torch.Tensor):
            assert found[name].dtype == value.dtype, name
            torch.testing.assert_close(found[name], value, rtol=0, atol=tolerance, msg=name)
        else:
            assert found[name] == value, name


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", SHARDED)
def test_weights_are_those_of_ddp(exported, kind, weights):
    of_ddp = {each: state_dict(exported / "ddp", each) for each in WEIGHTS}
    assert not torch.equal(of_ddp["last"]["layers.0.weight"], of_ddp["best"]["layers.0.weight"])
    found, model = state_dict(exported / kind, weights), Parts()
    assert_equal(found, of_ddp[weights])
    model.load_state_dict(found)
    assert model.layers[3].note == "trained"
    model = Parts.load_from_checkpoint(exported / kind / f"{weights}-checkpoint" / "model.ckpt")
    assert_equal(model.state_dict(), found, tolerance=0)


@pytest.mark.skipif("fsdp" not in SHARDED, reason="these versions have no FSDP on a CPU")
@pytest.mark.parametrize("weights", WEIGHTS)
def test_graphs_hold_the_same_weights(exported, weights):
    folder, model = exported / "fsdp", Parts()
    model.load_state_dict(state_dict(folder, weights))
    inputs = torch.randn(3, 4)
    outputs = model.eval()(inputs)
    scripted = torch.jit.load(folder / f"{weights}-torchscript" / "model.pt")
    torch.testing.assert_close(scripted(inputs), outputs)
    if "exported_program" in GRAPHS:
        program = torch.export.load(folder / f"{weights}-exported_program" / "model.pt2").module()
        torch.testing.assert_close(program(inputs), outputs)


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("kind", ["ddp", *SHARDED])
def test_a_shared_weight_is_written_once(exported, kind, weights):
    folder = exported / f"{kind}-tied"
    found = safetensors.load_file(folder / f"{weights}-safetensors" / "model.safetensors")
    expected = state_dict(exported / "ddp-tied", weights)
    assert_equal(state_dict(folder, weights), expected)
    if (kind, weights) in WRITTEN_TWICE:
        assert set(found) == set(expected)
    else:
        assert len({"layers.2.weight", "again.weight"} & set(found)) == 1
    assert_equal(found, {name: expected[name] for name in found})


@pytest.mark.parametrize("kind", [kind for kind in SHARDED if not kind.startswith("deepspeed")])
def test_the_exported_checkpoint_has_the_optimizer_states_of_ddp(exported, kind):
    (found, groups), (expected, groups_of_ddp) = (
        in_order(torch.load(exported / each / "last-checkpoint" / "model.ckpt", weights_only=False))
        for each in (kind, "ddp")
    )
    assert groups == groups_of_ddp
    assert len(found) == len(expected)
    for state, expected_state in zip(found, expected):
        assert_equal(state, expected_state)


def in_order(checkpoint):
    """The states in the order of the optimizer's groups, by which torch loads them whatever their numbers are."""
    (optimizer,) = checkpoint["optimizer_states"]
    groups = optimizer["param_groups"]
    states = [optimizer["state"][number] for group in groups for number in group["params"]]
    return states, [{**group, "params": len(group["params"])} for group in groups]
