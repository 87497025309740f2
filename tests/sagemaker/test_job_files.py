import json

import pytest

from lightning_sm import TrainingJob
from lightning_sm.errors import JobConfigError


def test_files_come_before_variables(opt_ml):
    # `mpirun` hands the master's SM_* to every host: trap 2 of the container contract.
    opt_ml.host("algo-2", "algo-1", "algo-2").hyperparameters(lr=0.1)
    opt_ml.write("inputdataconfig.json", {"training": {"TrainingInputMode": "FastFile"}})
    job = TrainingJob.resolve(
        opt_ml.environ(
            SM_CURRENT_HOST="algo-1",
            SM_HOSTS='["algo-1", "algo-9"]',
            SM_CURRENT_INSTANCE_GROUP="other",
            SM_CURRENT_INSTANCE_TYPE="ml.c5.large",
            SM_NETWORK_INTERFACE_NAME="ethwe",
            SM_HPS='{"lr": 0.5}',
            SM_CHANNELS='["other"]',
        )
    )
    assert (job.current_host, job.hosts) == ("algo-2", ("algo-1", "algo-2"))
    assert (job.current_group_name, job.current_instance_type) == ("homogeneousCluster", "ml.p4d.24xlarge")
    assert job.network_interface_name == "eth0"
    assert job.hyperparameters.values == {"lr": 0.1}
    assert [(channel.name, channel.input_mode) for channel in job.channels.values()] == [("training", "FastFile")]
    assert job.sources["current_host"] == str(opt_ml.config / "resourceconfig.json")
    assert job.sources["hyperparameters"] == str(opt_ml.config / "hyperparameters.json")


def test_variables_where_there_are_no_files(opt_ml):
    job = TrainingJob.resolve(
        opt_ml.environ(
            SM_CURRENT_HOST="algo-2",
            SM_HOSTS='["algo-1","algo-2"]',
            SM_CURRENT_INSTANCE_TYPE="ml.p3.2xlarge",
            SM_NETWORK_INTERFACE_NAME="ethwe",
            SM_NUM_GPUS="4",
            SM_HPS='{"lr":0.5}',
            SM_FRAMEWORK_PARAMS='{"sagemaker_distributed_dataparallel_enabled":true}',
            SM_CHANNELS='["my-data"]',
            **{"SM_CHANNEL_MY-DATA": "/mnt/my-data"},
        )
    )
    assert job.in_container
    assert (job.current_host, job.hosts, job.num_gpus) == ("algo-2", ("algo-1", "algo-2"), 4)
    assert (job.current_instance_type, job.network_interface_name) == ("ml.p3.2xlarge", "ethwe")
    assert job.hyperparameters.values == {"lr": 0.5}
    assert job.asks_for_smddp
    assert job.channels["my-data"].path == "/mnt/my-data"
    assert job.sources["hosts"] == "SM_HOSTS"
    assert job.sources["current_host"] == "SM_CURRENT_HOST"


@pytest.mark.parametrize(
    ("visible", "found"),
    [("0,1", (2, "CUDA_VISIBLE_DEVICES")), ("", (0, "CUDA_VISIBLE_DEVICES")), ("0,1,2,3,4", (4, "SM_NUM_GPUS"))],
)
def test_gpus_that_the_job_hides_are_not_counted(opt_ml, visible, found):
    # The toolkit counts what nvidia-smi lists; Lightning refuses more than it sees.
    job = TrainingJob.resolve(opt_ml.host("algo-1").environ(SM_NUM_GPUS=4, CUDA_VISIBLE_DEVICES=visible))
    assert (job.num_gpus, job.sources["num_gpus"]) == found


@pytest.mark.parametrize(
    "variables",
    [
        {},
        # Both exist as soon as the toolkit's Environment is built, and neither under SDK v3: trap 31.
        {"SAGEMAKER_JOB_NAME": "job", "SM_FRAMEWORK_PARAMS": "{}"},
        {"SM_CURRENT_HOST": "algo-1"},
        {"SM_HOSTS": '["algo-1"]'},
        {"SM_CURRENT_HOST": "", "SM_HOSTS": ""},
        {"MASTER_ADDR": "algo-1", "MASTER_PORT": "7777", "RANK": "0"},
    ],
)
def test_no_container(opt_ml, variables):
    assert TrainingJob.resolve(opt_ml.environ(**variables)) == TrainingJob()


def test_directories_by_default(opt_ml):
    job = TrainingJob.resolve(opt_ml.host("algo-1").environ())
    found = (job.base_dir, job.model_dir, job.output_data_dir, job.failure_file, job.checkpoint_dir)
    below = (".", "model", "output/data", "output/failure", "output/data/checkpoints")
    assert found == tuple(str(opt_ml.base / each) for each in below)
    assert job.tensorboard_dir is None


def test_directories_by_variables(opt_ml):
    opt_ml.host("algo-1").write("inputdataconfig.json", {"training": {}})
    job = TrainingJob.resolve(
        {"SM_INPUT_CONFIG_DIR": str(opt_ml.config), "SM_INPUT_DIR": "/i", "SM_MODEL_DIR": "/m",
         "SM_OUTPUT_DATA_DIR": "/o/data", "SM_OUTPUT_DIR": "/o"}
    )  # fmt: skip
    assert (job.model_dir, job.output_data_dir, job.failure_file) == ("/m", "/o/data", "/o/failure")
    assert job.channels["training"].path == "/i/data/training"
    assert job.sources["model_dir"] == "SM_MODEL_DIR"


@pytest.mark.parametrize("written", [{}, {"LocalPath": "/mnt/sync"}])
def test_directories_that_the_service_uploads(opt_ml, written):
    default, board = opt_ml.base / "checkpoints", "tensorboardoutputconfig.json"
    default.mkdir()
    opt_ml.host("algo-1").write("checkpointconfig.json", written).write(board, {"S3OutputPath": "s3://b/p", **written})
    job = TrainingJob.resolve(opt_ml.environ())
    assert job.checkpoint_dir == (written.get("LocalPath") or str(default))
    assert job.tensorboard_dir == written.get("LocalPath")
    assert job.sources.get("tensorboard_dir") == (str(opt_ml.config / board) if written else None)


_RESOURCES = {"current_host": "algo-1", "hosts": ["algo-1"]}


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("resourceconfig.json", "{", "resourceconfig.json is not JSON"),
        ("resourceconfig.json", [], "resourceconfig.json should be a JSON object"),
        ("resourceconfig.json", {"current_host": "algo-1"}, "SM_HOSTS should be a JSON list of names, but is None"),
        ("resourceconfig.json", {"hosts": ["algo-1"]}, "The current host is None by no file or variable"),
        ("resourceconfig.json", {"current_host": 1, "hosts": ["algo-1"]}, "current_host in .* should be a string"),
        ("resourceconfig.json", {"current_host": "algo-1", "hosts": []}, "not among the hosts"),
        ("resourceconfig.json", {"current_host": "algo-1", "hosts": "algo-1"}, "should be a JSON list of names"),
        ("resourceconfig.json", {"current_host": "a", "hosts": ["algo-1"]}, "'a' .* not among the hosts"),
        ("resourceconfig.json", {**_RESOURCES, "instance_groups": {}}, "instance_groups .* should be a JSON list"),
        ("resourceconfig.json", {**_RESOURCES, "instance_groups": [1]}, "An entry of instance_groups"),
        ("resourceconfig.json", {**_RESOURCES, "instance_groups": [{}]}, "no valid instance_group_name"),
        ("resourceconfig.json", {**_RESOURCES, "instance_groups": [{"instance_group_name": "g"}]}, "hosts of 'g'"),
        ("resourceconfig.json", {**_RESOURCES, "current_group_name": 5}, "current_group_name in"),
        ("hyperparameters.json", b"\xff", "hyperparameters.json cannot be read"),
        ("hyperparameters.json", [], "hyperparameters.json should be a JSON object"),
        ("hyperparameters.json", {"sagemaker_distribution_instance_groups": "5"}, "sagemaker_distribution_instance"),
        ("inputdataconfig.json", "", "inputdataconfig.json is not JSON"),
        ("inputdataconfig.json", {"training": None}, "Channel 'training' in"),
        ("inputdataconfig.json", "[" * 100_000, "inputdataconfig.json is not JSON"),
        ("checkpointconfig.json", {"LocalPath": "relative"}, "LocalPath in .* should be an absolute path"),
        ("checkpointconfig.json", {"LocalPath": 5}, "LocalPath in .* should be an absolute path"),
        ("tensorboardoutputconfig.json", {"LocalPath": "tb"}, "LocalPath in .* should be an absolute path"),
        ("tensorboardoutputconfig.json", ["/tb"], "tensorboardoutputconfig.json should be"),
    ],
)
def test_broken_file(opt_ml, name, content, says):
    opt_ml.write("resourceconfig.json", _RESOURCES).write(name, content)
    with pytest.raises(JobConfigError, match=says) as info:
        TrainingJob.resolve(opt_ml.environ())
    assert len(str(info.value)) < 800


@pytest.mark.parametrize(
    ("variables", "says"),
    [
        ({"SM_HOSTS": '["algo-2"]'}, "'algo-1' by SM_CURRENT_HOST, .* not among the hosts .* by SM_HOSTS.*HINT:"),
        ({"SM_HOSTS": "algo-1"}, "SM_HOSTS is not JSON"),
        ({"SM_HOSTS": "{}"}, "SM_HOSTS should be a JSON list of names"),
        ({"SM_CHANNELS": '"training"'}, "SM_CHANNELS should be a JSON list of names"),
        ({"SM_HPS": "[1]"}, "SM_HPS should be a JSON object"),
        # Cut at a '#' by remote login.
        ({"SM_HPS": '{"color":"'}, r"SM_HPS is not JSON.*HINT:.*'#'"),
        ({"SM_FRAMEWORK_PARAMS": "[1]"}, "SM_FRAMEWORK_PARAMS should be a JSON object"),
        ({"SM_NUM_GPUS": "all"}, "SM_NUM_GPUS is 'all'"),
    ],
)
def test_broken_variable(opt_ml, variables, says):
    given = {"SM_CURRENT_HOST": "algo-1", "SM_HOSTS": json.dumps(["algo-1"]), **variables}
    with pytest.raises(JobConfigError, match=says):
        TrainingJob.resolve(opt_ml.environ(**given))


@pytest.mark.parametrize(
    ("variables", "reserved", "name", "source"),
    [
        ({"TRAINING_JOB_NAME": "a", "TRAINING_JOB_ARN": "x/b"}, {"sagemaker_job_name": "c"}, "a", "TRAINING_JOB_NAME"),
        ({"TRAINING_JOB_ARN": "arn:aws:sagemaker:x:1:training-job/b"}, {}, "b", "TRAINING_JOB_ARN"),
        ({}, {"sagemaker_job_name": "c"}, "c", "sagemaker_job_name"),
        ({"SAGEMAKER_JOB_NAME": "d"}, {}, "d", "SAGEMAKER_JOB_NAME"),
        ({"SAGEMAKER_JOB_NAME": ""}, {}, None, None),
        # The training jobs of a tuning job share what the SDK wrote down.
        ({}, {"sagemaker_job_name": "c", "_tuning_objective_metric": "loss"}, None, None),
    ],
)  # fmt: skip
def test_the_jobs_name(opt_ml, variables, reserved, name, source):
    job = TrainingJob.resolve(opt_ml.host("algo-1").hyperparameters(**reserved).environ(**variables))
    assert (job.name, job.sources.get("name")) == (name, source)


@pytest.mark.parametrize(("channel", "expected"), [("sm_drivers", "20240101"), ("training", 20240101)])
def test_text_that_looks_like_a_number_stays_text_in_jobs_of_sdk_v3(opt_ml, channel, expected):
    opt_ml.host("algo-1").write("inputdataconfig.json", {channel: {"TrainingInputMode": "File"}})
    opt_ml.write("hyperparameters.json", {"run_id": "20240101", "layers": "[1, 2]"})
    values = TrainingJob.resolve(opt_ml.environ()).hyperparameters.values
    assert values == {"run_id": expected, "layers": [1, 2]}
