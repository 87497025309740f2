"""What a job asks of AWS's model parallel library, by the names of its releases."""

import pytest

from lightning_sm._distributed.smp_parameters import SMPParameters, TSMParameters, read_mp_parameters
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import JobConfigError


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"partitions": 2}, {"pipeline_parallel_degree": 2}),
        (
            {"pipeline_parallel_degree": 2, "partitions": 2, "microbatches": 4, "ddp": True},
            {"pipeline_parallel_degree": 2, "microbatches": 4, "ddp": True},
        ),
        # An API call without JSON, as a hyperparameter of SDK v3 may be.
        ({"partitions": "2", "ddp": "True", "fp16": "false"}, {"pipeline_parallel_degree": 2, "ddp": True}),
        # What only the library reads.
        ({"memory_weight": 0.5, "offload_activations": True, "placement_strategy": "DTP"}, {}),
    ],
)  # fmt: skip
def test_names_of_both_generations(given, expected):
    assert SMPParameters.parse(given) == SMPParameters(**expected)


@pytest.mark.parametrize(
    ("kind", "given", "says"),
    [
        (SMPParameters, {"partitions": 2, "pipeline_parallel_degree": 4}, "to different values"),
        (SMPParameters, {"partitions": 0}, "partitions of mp_parameters is 0"),
        (SMPParameters, {"microbatches": True}, "microbatches of mp_parameters is True"),
        (SMPParameters, {"ddp": "maybe"}, "ddp of mp_parameters is 'maybe'"),
        (TSMParameters, {"tensor_parallel_degree": 0}, "tensor_parallel_degree of mp_parameters is 0"),
    ],
)
def test_values_of_other_types(kind, given, says):
    with pytest.raises(JobConfigError, match=says):
        kind.parse(given)


def test_where_they_come_from(in_environ, opt_ml):
    assert read_mp_parameters(TrainingJob.resolve()) == {}
    in_environ({"SM_HP_MP_PARAMETERS": '{"partitions": 2}'})
    assert read_mp_parameters(TrainingJob.resolve()) == {"partitions": 2}
    opt_ml.hyperparameters(mp_parameters={"partitions": 4}).host("algo-1")
    in_environ(opt_ml.environ())
    assert read_mp_parameters(TrainingJob.resolve()) == {"partitions": 4}
    in_environ({"SM_HP_MP_PARAMETERS": "partitions=2", "SAGEMAKER_BASE_DIR": "/nowhere"})
    with pytest.raises(JobConfigError, match="is 'partitions=2', which is not a JSON object"):
        read_mp_parameters(TrainingJob.resolve())


def test_degrees_of_the_second_library():
    plain = TSMParameters.parse({"hybrid_shard_degree": 0, "sm_activation_offloading": True})
    assert plain == TSMParameters()
    assert plain.is_plain
    parameters = TSMParameters.parse(
        {"hybrid_shard_degree": 4, "expert_parallel_degree": "2", "context_parallel_degree": 2}
    )
    assert (parameters.same_data, parameters.is_plain) == (2, False)
    parameters.check_world(8)
    with pytest.raises(JobConfigError, match="degrees of 4 processes, which do not divide the 6 of the job"):
        parameters.check_world(6)
