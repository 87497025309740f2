"""What was seen of a job: its description, its log, its metrics, and what it left in S3."""

import io
import json
import re
import tarfile
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm.launch import follow

__all__ = ["Rank", "Seen", "SeenTraining", "keys_below", "look_at"]

_SAID = re.compile(r"acceptance: (\{.*\})")
_HOST = re.compile(r"\[(?P<host>algo-\d+)(?: rank \d+)?\] ")
_PARAMETERS = ("layer.weight", "layer.bias")


@dataclass(frozen=True)
class Rank:
    """What a rank said of itself at the end of its training.

    Args:
        rank: Its rank in torch's process group.
        world_size: The size of that group.
        local_rank: Its rank on its host.
        host: Its host.
        gpus: The GPUs that it saw.
        backend: The backend of the group; ``None`` in a world of one process.
        step: The optimizer steps that it made.
        weights: The two weights and the bias.
        versions: The versions of torch and Lightning.
    """

    rank: int
    world_size: int
    local_rank: int
    host: str
    gpus: int
    backend: Optional[str]
    step: int
    weights: Tuple[float, ...]
    versions: Mapping[str, str]


@dataclass(frozen=True)
class SeenTraining:
    """A training job after its end.

    Args:
        name: Its name.
        status: Its status.
        failure_reason: Its failure reason; empty if it has none.
        lr: The learning rate that it was sent; ``None`` for that of the config file.
        log: The lines of its log, as ``lightning-sm logs`` shows them.
        metrics: The last values that SageMaker read from the log.
        checkpoints: Names below its prefix for checkpoints.
        model: The weights and the bias in ``model.tar.gz``; ``None`` if there is no such file.
        instances: Its instance type and the number of them.
        billable_seconds: The seconds for which each of them is billed.
    """

    name: str
    status: str
    failure_reason: str
    lr: Optional[float]
    log: Tuple[str, ...]
    metrics: Mapping[str, float]
    checkpoints: Tuple[str, ...]
    model: Optional[Tuple[float, ...]]
    instances: Tuple[str, int]
    billable_seconds: int

    @property
    def ranks(self) -> Tuple[Rank, ...]:
        """What each rank said, by rank."""
        said = [json.loads(match[1]) for match in map(_SAID.search, self.log) if match]
        ranks = [Rank(**{**each, "weights": tuple(each["weights"])}) for each in said]
        return tuple(sorted(ranks, key=lambda rank: rank.rank))

    @property
    def hosts(self) -> Tuple[str, ...]:
        """The hosts that wrote lines."""
        return tuple(sorted({match["host"] for match in map(_HOST.match, self.log) if match}))


@dataclass(frozen=True)
class Seen:
    """A job after its end.

    Args:
        trainings: Its training jobs: itself, or those that a tuning job started.
        best: The best training job of a tuning job.
    """

    trainings: Tuple[SeenTraining, ...]
    best: Optional[str] = None


def look_at(session: Any, name: str, kind: str, log: Sequence[str]) -> Seen:
    """Return what is to be seen of a job that has ended.

    Args:
        session: A boto3 session.
        name: The job.
        kind: ``TrainingJob`` or ``HyperParameterTuningJob``.
        log: The lines of its log; not used for a tuning job, which has none.
    """
    if kind == "TrainingJob":
        return Seen((_training(session, name, log),))
    client, trainings = session.client("sagemaker"), []
    pages = client.get_paginator("list_training_jobs_for_hyper_parameter_tuning_job")
    for page in pages.paginate(HyperParameterTuningJobName=name):
        for each in page["TrainingJobSummaries"]:
            lines: List[str] = []
            follow(session, each["TrainingJobName"], write=lines.append, wait=False)
            trainings.append(_training(session, each["TrainingJobName"], lines))
    best = client.describe_hyper_parameter_tuning_job(HyperParameterTuningJobName=name).get("BestTrainingJob") or {}
    return Seen(tuple(trainings), best.get("TrainingJobName"))


def _training(session: Any, name: str, log: Sequence[str]) -> SeenTraining:
    job: Dict[str, Any] = session.client("sagemaker").describe_training_job(TrainingJobName=name)
    s3, lr = session.client("s3"), job["HyperParameters"].get("model.lr")
    prefix = (job.get("CheckpointConfig") or {}).get("S3Uri")
    resources = job["ResourceConfig"]
    return SeenTraining(
        name,
        job["TrainingJobStatus"],
        job.get("FailureReason") or "",
        None if lr is None else float(json.loads(lr)),
        tuple(log),
        {each["MetricName"]: float(each["Value"]) for each in job.get("FinalMetricDataList", ())},
        tuple(keys_below(s3, f"{prefix}/")) if prefix else (),
        _weights(s3, (job.get("ModelArtifacts") or {}).get("S3ModelArtifacts")),
        (resources["InstanceType"], resources["InstanceCount"]),
        int(job.get("BillableTimeInSeconds") or 0),
    )


def keys_below(s3: Any, uri: str) -> List[str]:
    """Return the keys of all objects below an ``s3://`` address that ends with ``/``."""
    bucket, _, prefix = uri[len("s3://") :].partition("/")
    pages = s3.get_paginator("list_objects_v2").paginate(Bucket=bucket, Prefix=prefix)
    return [each["Key"] for page in pages for each in page.get("Contents", ())]


def _weights(s3: Any, uri: Optional[str]) -> Optional[Tuple[float, ...]]:
    if not uri or not keys_below(s3, uri):
        return None
    import torch

    bucket, _, key = uri[len("s3://") :].partition("/")
    archive = io.BytesIO(s3.get_object(Bucket=bucket, Key=key)["Body"].read())
    with tarfile.open(fileobj=archive) as packed:
        names = [name for name in packed.getnames() if name.rpartition("/")[2] == "model.pt"]
        file = packed.extractfile(names[0]) if names else None
        if file is None:
            return None
        state = torch.load(io.BytesIO(file.read()), weights_only=True)
    return tuple(float(value) for name in _PARAMETERS for value in state[name].flatten())
