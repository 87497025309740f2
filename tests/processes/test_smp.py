"""``SMPStrategy`` over the stand-in for AWS's model parallel library: the weights are those of plain Lightning."""

import json
from typing import Any, Dict, Tuple

import pytest

from tests.helpers.processes import STANDINS, Job, assert_equal
from tests.helpers.skips import installed_version

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]

_BATCH = 8
_CLIPPED = {"accumulate_grad_batches": 2, "gradient_clip_val": 0.05}
_PIPELINE = {"partitions": 2, "microbatches": 2, "ddp": True}
_TENSOR = {"pipeline_parallel_degree": 1, "tensor_parallel_degree": 2, "microbatches": 2, "ddp": True}
# The parameters of the job, how many ranks read data of their own, and arguments of the Trainer.
_CASES: Dict[str, Tuple[Dict[str, Any], int, Dict[str, Any]]] = {
    "pipeline": ({"partitions": 2, "microbatches": 2}, 1, _CLIPPED),
    "tensor": (_TENSOR, 2, {"gradient_clip_val": 0.05}),
    "data": ({"ddp": True, "microbatches": 4}, 2, {"accumulate_grad_batches": 3}),
    "prescaled": (
        {"tensor_parallel_degree": 2, "prescaled_batch": True, "ddp": True},
        1,
        {"gradient_clip_val": 0.01, "gradient_clip_algorithm": "value"},
    ),
}
_RESUMED: Dict[str, Dict[str, Any]] = {"full": _PIPELINE, "partial": _TENSOR}
_LACKS_HALF = installed_version("torch") < (2, 3)
half_precision = pytest.mark.skipif(_LACKS_HALF, reason="CPUs compute and scale in half precision from torch 2.3 on")
_HALF: Dict[str, Dict[str, Any]] = {
    "scaler": {"parameters": _PIPELINE, "mixed": True},
    "fp16": {"parameters": {**_PIPELINE, "fp16": True}, "late": True},
}


def _case(parameters, replicas, arguments):
    return {"parameters": parameters, "trainer": arguments, "batch_size": _BATCH // replicas}


@pytest.fixture(scope="module")
def ranks(tmp_path_factory):
    cases = {name: _case(*case) for name, case in _CASES.items()}
    cases["tensor"]["ours"] = True
    for name, case in _HALF.items() if not _LACKS_HALF else ():
        cases[name] = {**_case(case["parameters"], 1, {"gradient_clip_val": 0.5}), **case}
    for name, parameters in _RESUMED.items():
        replicas = parameters.get("tensor_parallel_degree", 1)
        cases[name] = {**_case(parameters, replicas, {"gradient_clip_val": 0.05}), "resume": True}
    cases["refused"] = {"parameters": _PIPELINE}
    words = ("tests.processes.train_smp", json.dumps(cases))
    return Job(tmp_path_factory.mktemp("smp"), *words, path=[STANDINS], timeout=700).torchrun(1, 2).results(2)


@pytest.fixture(scope="module", params=_CASES)
def case(request, ranks):
    from tests.helpers.smp import fit_plain

    _, _, arguments = _CASES[request.param]
    return request.param, [found[request.param] for found in ranks], fit_plain(_BATCH, **arguments)


def test_weights_and_logged_values_are_those_of_plain_lightning(case):
    _, ranks, plain = case
    for found in ranks:
        assert_equal(found["weights"], plain["weights"], abs=1e-7)
        # Means over microbatches, on every rank.
        assert set(found["metrics"]) == set(plain["metrics"])
        assert found["tested"] == pytest.approx(plain["tested"], abs=1e-6)
        for name in ("train_loss_epoch", "val_loss", "val_mean"):
            assert found["metrics"][name] == pytest.approx(plain["metrics"][name], abs=1e-6)
    mean = [sum(each) / len(ranks) for each in zip(*(found["hooks"] for found in ranks))]
    assert mean == pytest.approx(plain["hooks"], abs=1e-6)


def test_data_goes_by_the_data_parallel_rank_and_the_steps_are_those_of_aws(case):
    name, ranks, _ = case
    parameters, replicas, arguments = _CASES[name]
    assert {found["sampler"]["num_replicas"] for found in ranks} == {replicas}
    assert {found["sampler"]["rank"] for found in ranks} == set(range(replicas))
    marked = [["set_tensor_parallelism", True]] if "tensor_parallel_degree" in parameters else []
    made = ["DistributedModel", arguments.get("accumulate_grad_batches", 1)], ["DistributedOptimizer", False]
    for found in ranks:
        # Of a whole batch.
        assert {tuple(shape) for shape in found["predicted"]} == {(_BATCH // replicas, 2)}
        assert found["strategy"] == "SMPStrategy"
        calls = [call for call in found["calls"] if call[0] not in ("model_creation", "step")]
        assert calls == [["init"], *marked, *made]
        assert found["calls"].count(["step", "step"]) == 4


@half_precision
def test_the_librarys_scaler_trains_as_lightnings(ranks):
    from tests.helpers.smp import fit_plain

    plain = fit_plain(_BATCH, mixed=True, gradient_clip_val=0.5)
    for found in ranks:
        assert_equal(found["scaler"]["weights"], plain["weights"], abs=2e-3)
        assert ["DistributedOptimizer", False] in found["scaler"]["calls"]


@half_precision
def test_the_librarys_own_half_precision_scales_its_loss(ranks):
    from tests.helpers.smp import fit_plain

    plain = fit_plain(_BATCH, gradient_clip_val=0.5)
    for found in ranks:
        assert_equal(found["fp16"]["weights"], plain["weights"], abs=2e-2)
        assert ["DistributedOptimizer", True] in found["fp16"]["calls"]
        assert ["model_creation", False, "torch.float16"] in found["fp16"]["calls"]


@pytest.mark.parametrize("name", _RESUMED)
def test_a_job_continues_from_its_own_checkpoint_and_exports_the_whole_model(ranks, name):
    from tests.helpers.smp import fit_plain

    plain = fit_plain(_BATCH, gradient_clip_val=0.05)
    # Within the second epoch, or at its start.
    step = 8 if installed_version("pytorch-lightning") >= (2, 5) else 6
    for found in (each[name] for each in ranks):
        assert found["resumed_from"].endswith(f"/fit-0/step-{step}.ckpt")
        assert_equal(found["weights"], plain["weights"], abs=1e-7)
        assert_equal(found["exported"], plain["weights"], abs=1e-7)
        inside = [file.rpartition("fit-0/")[2] for file in found["files"] if "/step-12.ckpt" in file]
        parts = [f"lightning_partial/{kind}_0_{rank}.pt" for kind in ("model", "optimizer") for rank in (0, 1)]
        folder = ["manifest.json", *parts, "lightning_partial/user_content.pt", "newest"]
        expected = ["step-12.ckpt"] if name == "full" else [f"step-12.ckpt/{file}" for file in folder]
        assert sorted(inside) == sorted(expected)


_REFUSED = {
    "manual": "manual optimization (automatic_optimization=False), and so with several optimizers",
    "two_networks": "parameters are in: net, head",
    "own_parameter": "parameters of the LightningModule outside its network",
    "compiled": "cannot train with torch.compile",
    "bf16": "of precision bf16-mixed",
    "sync_batchnorm": "sync_batchnorm=True",
    "indivisible": "batch_size=5 cannot be split into 2 microbatches",
    "last_batch": "The last batch has 3 samples",
    "remainder": "An epoch has 6 batches and accumulate_grad_batches=4",
    "other_accumulation": "accumulate_grad_batches is 2",
    "second_trainer": "accumulate_grad_batches is 2, and the network was partitioned for 1",
    "clip_sharded": "sdp_gradient_clipping",
    "no_parameters": "needs the hyperparameter mp_parameters",
    "three_partitions": "do not divide the 2 of the job",
    "no_ddp": 'Add "ddp": True',
}


def test_what_cannot_work_is_refused_by_name(ranks):
    for found in (each["refused"] for each in ranks):
        assert {name: text for name, text in _REFUSED.items() if text not in found.get(name, "")} == {}, found
        assert all("HINT: " in error for error in found.values())
