"""The six jobs: for each the request that is sent, and what is expected of it."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from lightning_sm.launch import (
    Account,
    JobRequest,
    LaunchSettings,
    check_limits,
    create_job_request,
    create_tuning_request,
    draw,
    tuning_settings_of,
)

__all__ = ["PROJECT", "STOP_AT", "AcceptanceJob", "Expected", "planned_jobs"]

#: The folder that all jobs get as their source.
PROJECT = Path(__file__).parent / "project"
#: A job that is to be stopped is stopped when its log has this text: a line of lightning_sm with a logged metric.
STOP_AT = "metrics at step"
_ON_PURPOSE = "acceptance: the last rank fails on purpose"
_CPU: Dict[str, Any] = {"image": "pytorch-2.8-cpu", "instance_type": "ml.m5.xlarge"}
_GPU: Dict[str, Any] = {"image": "pytorch-2.8-gpu", "instance_type": "ml.g5.xlarge"}
# The last image that holds SMDDP, on a type that SMDDP works on.
_SMDDP: Dict[str, Any] = {"image": "pytorch-2.5.1-gpu", "instance_type": "ml.p4d.24xlarge"}


@dataclass(frozen=True)
class Expected:
    """What is expected of each training job.

    Args:
        status: Its status.
        hosts: The number of its hosts.
        processes: Processes on each host; ``None`` for one for each GPU, and one where there is none.
        backend: The backend of the process group; ``None`` for NCCL where there are GPUs, and gloo elsewhere.
        steps: The optimizer steps that it ends with; ``None`` if it is stopped somewhere.
        failure: What its failure reason contains; ``None`` for a job that has none.
        checkpoints: Whether it leaves checkpoints.
        trainings: How many training jobs there are.
    """

    status: str = "Completed"
    hosts: int = 1
    processes: Optional[int] = None
    backend: Optional[str] = None
    steps: Optional[int] = 24
    failure: Optional[str] = None
    checkpoints: bool = True
    trainings: int = 1


@dataclass(frozen=True)
class AcceptanceJob:
    """One job of the six.

    Args:
        title: What it is about.
        request: What is sent.
        expected: What is expected of it.
        stop_at: The text of its log at which it is stopped.
    """

    title: str
    request: JobRequest
    expected: Expected = field(default_factory=Expected)
    stop_at: Optional[str] = None

    def as_dict(self) -> Dict[str, Any]:
        """The job for ``--dry-run``."""
        return {
            "title": self.title,
            "operation": f"Create{self.request.kind}",
            "request": self.request.as_body(),
            "expected": vars(self.expected),
            "stop_at": self.stop_at,
        }


def planned_jobs(role: str, account: Account, stamp: str) -> Tuple[AcceptanceJob, ...]:
    """Return the six jobs. Nothing is sent.

    Args:
        role: The ARN of the execution role.
        account: Region and bucket.
        stamp: What makes the names unique, at most 12 characters.

    Raises:
        LaunchError: botocore's model of the API refuses one of the requests.
    """
    common = LaunchSettings(role=role, max_run="30m", hyperparameters={"config": "config.yaml"}, metrics=["val_loss"])

    def job(title: str, expected: Expected, stop_at: Optional[str] = None, **settings: Any) -> AcceptanceJob:
        hyperparameters = {**common.hyperparameters, **settings.pop("hyperparameters", {})}
        asked = replace(common, hyperparameters=hyperparameters, **settings)
        request = create_job_request(asked, account, name=f"acceptance-{title}-{stamp}")
        check_limits(request)
        return AcceptanceJob(title, request, expected, stop_at)

    return (
        job("none", Expected(), **_CPU),
        job("torchrun", Expected(hosts=2), distribution="torch_distributed", instances=2, **_GPU),
        job(
            "mpi",
            Expected("Failed", hosts=2, processes=2, failure=_ON_PURPOSE),
            distribution="mpi",
            processes_per_host=2,
            hyperparameters={"model.fails": True},
            instances=2,
            **_CPU,
        ),
        job(
            "smddp",
            Expected(hosts=2, backend="smddp"),
            distribution="smdistributed",
            hyperparameters={
                "trainer.strategy": {
                    "class_path": "lightning_sm.SMDDPStrategy",
                    "init_args": {"process_group_backend": "smddp"},
                }
            },
            instances=2,
            **_SMDDP,
        ),
        job(
            "spot",
            Expected("Stopped", steps=None),
            stop_at=STOP_AT,
            spot=True,
            hyperparameters={"model.seconds": 0.5, "trainer.max_epochs": 3000},
            **_GPU,
        ),
        _tuning_job(replace(common, **_CPU), account, f"acceptance-tuning-{stamp}"),
    )


def _tuning_job(settings: LaunchSettings, account: Account, name: str) -> AcceptanceJob:
    ranges: Mapping[str, List[float]] = {"model.lr": [0.05, 0.1]}
    search = {"objective": "val_loss", "direction": "minimize", "ranges": ranges, "max_parallel_jobs": 2}
    tuning = tuning_settings_of({**search, "strategy": "Grid"})
    request = create_tuning_request(settings, tuning, account, name=name)
    for each in (request, draw(request, 0)):
        check_limits(each)
    return AcceptanceJob("tuning", request, Expected(checkpoints=False, trainings=2))
