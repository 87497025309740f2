import pytest

from lightning_sm import Hyperparameters, InstanceGroup, TrainingJob
from lightning_sm.errors import RoutingError
from tests.projects.container import log_lines

_GPU = InstanceGroup("gpu", "ml.p4d.24xlarge", ("algo-3", "algo-1"))
_CPU = InstanceGroup("cpu", "ml.c5.large", ("algo-2",))
_HOSTS = ("algo-1", "algo-2", "algo-3")


@pytest.mark.parametrize(
    ("current_group", "groups", "distribution", "world"),
    [
        # The order given, never the sorted one: algo-3 is the master.
        ("gpu", (_GPU, _CPU), ("gpu",), ("algo-3", "algo-1")),
        # A host outside the distribution trains with its own group.
        ("cpu", (_GPU, _CPU), ("gpu",), ("algo-2",)),
        # SDK v2 sends no group list for torch_distributed: each group is a world.
        ("gpu", (_GPU, _CPU), (), ("algo-3", "algo-1")),
        ("cpu", (_GPU, _CPU), (), ("algo-2",)),
        ("gpu", (_GPU, _CPU), ("gpu", "cpu"), ("algo-3", "algo-1", "algo-2")),
        # Local mode names no groups.
        (None, (), (), _HOSTS),
        # A group that holds nothing that we know.
        ("other", (_GPU, _CPU), (), _HOSTS),
    ],
)
def test_hosts_that_train_together(current_group, groups, distribution, world):
    job = TrainingJob(
        in_container=True,
        hosts=_HOSTS,
        current_group_name=current_group,
        instance_groups=groups,
        distribution_groups=distribution,
    )
    assert job.world_hosts == world


@pytest.mark.parametrize(
    ("reserved", "asks"),
    [
        ({"sagemaker_distributed_dataparallel_enabled": True}, True),
        ({"sagemaker_distributed_dataparallel_enabled": "true"}, True),
        ({"sagemaker_distributed_dataparallel_enabled": False}, False),
        ({"sagemaker_torch_distributed_enabled": True}, False),
        ({}, False),
    ],
)
def test_asks_for_smddp(reserved, asks):
    job = TrainingJob(hyperparameters=Hyperparameters(reserved=reserved))
    assert job.asks_for_smddp is asks
    assert not job.asks_for_parameter_server


def test_a_channel_in_a_job_and_elsewhere(opt_ml):
    opt_ml.host("algo-1").write("inputdataconfig.json", {"training": {"TrainingInputMode": "File"}, "empty": {}})
    folder = opt_ml.base / "input" / "data" / "training"
    folder.mkdir(parents=True)
    (folder / "x.txt").write_text("x")
    job = TrainingJob.resolve(opt_ml.environ())
    assert job.channel("training", default="./data") == job.channel("training") == str(folder)
    with log_lines() as lines:
        assert job.channel("labels", default="./labels") == "./labels"
    assert lines == ["The job has no channel 'labels'; using the default ./labels"]
    with pytest.raises(RoutingError, match=r"The job has no channel 'labels'. Its channels: empty, training"):
        job.channel("labels")
    with pytest.raises(RoutingError, match=r"The channel 'empty' at .* does not exist"):
        job.channel("empty", default="./data")


def test_a_channel_outside_a_job():
    assert TrainingJob().channel("training", default="./data") == "./data"
    with pytest.raises(RoutingError, match=r"No channel .training.: this process does not run in .* HINT: "):
        TrainingJob().channel("training")
