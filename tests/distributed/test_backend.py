"""Each row of the table of backends."""

import os
import sys
import types

import pytest

from lightning_sm import Hyperparameters, TrainingJob
from lightning_sm._distributed.backend import BackendChoice, choose_backend
from lightning_sm.errors import SMDDPUnavailableError
from tests.helpers.processes import STANDINS

_MODULE = "smdistributed.dataparallel.torch.torch_smddp"
_ASKS = Hyperparameters(reserved={"sagemaker_distributed_dataparallel_enabled": True})
_LAPTOP = TrainingJob()
_PLAIN = TrainingJob(in_container=True, current_instance_type="ml.g5.xlarge")
_WANTS = TrainingJob(in_container=True, current_instance_type="ml.p4d.24xlarge", hyperparameters=_ASKS)


@pytest.fixture
def importable(monkeypatch):
    monkeypatch.setitem(sys.modules, _MODULE, types.ModuleType(_MODULE))


@pytest.fixture
def absent(monkeypatch):
    monkeypatch.setitem(sys.modules, _MODULE, None)


_FAILED = f"importing {_MODULE} failed with ModuleNotFoundError: "


@pytest.mark.parametrize(
    ("library", "requested", "device", "job", "backend", "reason"),
    [
        ("importable", None, "cuda", _WANTS, "smddp", "the job's distribution is smdistributed.dataparallel"),
        ("importable", None, "cuda", _PLAIN, "nccl", "the job's distribution is not smdistributed.dataparallel"),
        ("importable", None, "cuda", _LAPTOP, "nccl", "this is not a SageMaker training container"),
        ("importable", None, "cpu", _LAPTOP, "gloo", "this is not a SageMaker training container"),
        ("importable", None, "neuron", _PLAIN, "neuron", "the job's distribution is not smdistributed.dataparallel"),
        ("importable", None, "neuron", _WANTS, "neuron", "SMDDP needs GPUs and the device is neuron"),
        ("importable", None, "xla", _LAPTOP, "xla", "this is not a SageMaker training container"),
        # A device whose backend Lightning knows better than we do.
        ("importable", None, "hpu", _PLAIN, None, "the job's distribution is not smdistributed.dataparallel"),
        ("importable", "smddp", "cuda", _PLAIN, "smddp", "it was requested"),
        ("importable", "smddp", "cpu", _LAPTOP, "smddp", "it was requested"),
        ("importable", "hccl", "hpu", _LAPTOP, "hccl", "it was requested"),
        ("absent", None, "cuda", _WANTS, "nccl", _FAILED),
        ("absent", None, "cpu", _WANTS, "gloo", "SMDDP needs GPUs and the device is cpu"),
        ("absent", None, "cuda", _PLAIN, "nccl", "the job's distribution is not smdistributed.dataparallel"),
        ("absent", "nccl", "cuda", _WANTS, "nccl", "it was requested"),
        ("absent", "gloo", "cuda", _WANTS, "gloo", "it was requested"),
    ],
)
def test_the_choice_and_its_reason(request, library, requested, device, job, backend, reason):
    request.getfixturevalue(library)
    choice = choose_backend(requested, device, job)
    assert choice.backend == backend
    assert choice.reason.startswith(reason)


@pytest.mark.usefixtures("absent")
@pytest.mark.parametrize(
    ("job", "instance"), [(_PLAIN, "ml.g5.xlarge"), (_LAPTOP, "unknown: not in a SageMaker container")]
)
def test_asked_for_by_name_where_it_cannot_be_imported(job, instance):
    failed = f"importing {_MODULE} failed with ModuleNotFoundError"
    says = rf"'smddp' was requested, but {failed}: .* \(instance type {instance}\)\. HINT: "
    with pytest.raises(SMDDPUnavailableError, match=says) as info:
        choose_backend("smddp", "cuda", job)
    assert "leave process_group_backend out to fall back to NCCL" in info.value.hint


@pytest.mark.parametrize("variable", ["SM_CURRENT_INSTANCE_TYPE", "SAGEMAKER_INSTANCE_TYPE", None])
def test_library_that_refuses_the_instance_type(monkeypatch, variable):
    # AWS's library raises on import there; the stand-in does as well.
    monkeypatch.syspath_prepend(STANDINS)
    if variable is not None:
        monkeypatch.setenv(variable, "ml.g5.xlarge")
    refusal = f"instance type {'unknown' if variable is None else 'ml.g5.xlarge'} is not supported"
    choice = choose_backend(None, "cuda", _WANTS)
    assert choice.backend == "nccl"
    assert f"failed with RuntimeError: SMDDP stand-in: {refusal}" in choice.reason
    with pytest.raises(SMDDPUnavailableError, match=refusal):
        choose_backend("smddp", "cuda", _WANTS)


@pytest.mark.usefixtures("importable")
@pytest.mark.parametrize(
    ("kind", "given", "backend", "left"),
    [
        ("ml.p4d.24xlarge", "", "smddp", "true"),
        ("ml.p4de.24xlarge", "false", "smddp", "false"),
        ("ml.p3dn.24xlarge", "", "nccl", ""),
        (None, "", "nccl", ""),
    ],
)
def test_instance_types_with_all_gather(monkeypatch, kind, given, backend, left):
    monkeypatch.setenv("SMDATAPARALLEL_OPTIMIZE_SDP", given)
    if not given:
        monkeypatch.delenv("SMDATAPARALLEL_OPTIMIZE_SDP")
    job = TrainingJob(in_container=True, current_instance_type=kind, hyperparameters=_ASKS)
    choice = choose_backend(None, "cuda", job, gathers=True)
    assert choice.backend == backend
    if backend == "nccl":
        types = "ml.p4d.24xlarge and ml.p4de.24xlarge"
        assert choice.reason == f"SMDDP's AllGather is for {types} and the instance type is {kind or 'unknown'}"
    # It must be there before the library is imported, and DDP must not get it.
    assert os.environ.get("SMDATAPARALLEL_OPTIMIZE_SDP", "") == left
    assert choose_backend(None, "cuda", job).backend == "smddp"


@pytest.mark.usefixtures("importable")
def test_a_strategy_that_cannot_train_over_it():
    assert choose_backend(None, "cuda", _WANTS, problem="it is old") == BackendChoice("nccl", "it is old")
    with pytest.raises(SMDDPUnavailableError, match=r"'smddp' was requested, but it is old \(instance type ml\.p4d"):
        choose_backend("smddp", "cuda", _WANTS, problem="it is old")
