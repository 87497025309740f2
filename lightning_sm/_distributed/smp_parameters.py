"""``SMPParameters``: what a job asks of AWS's model parallel library, by the hyperparameter ``mp_parameters``."""

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field, fields
from typing import Any, Dict, Mapping, Optional

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import JobConfigError

__all__ = ["SMPParameters", "read_mp_parameters"]

_NAME = "mp_parameters"
_VARIABLE = "SM_HP_MP_PARAMETERS"
_HINT = (
    'Set distribution={"smdistributed": {"modelparallel": {"enabled": True, "parameters": {...}}}, "mpi": {...}} of '
    "the estimator."
)
# "partitions" is the name before release 1.6 of the library; it takes both.
_ALIASES = {"partitions": "pipeline_parallel_degree"}


def read_mp_parameters(job: TrainingJob) -> Dict[str, Any]:
    """Return the parameters of the job's model parallel library as they were given; empty in any other job.

    Args:
        job: The job, whose hyperparameter ``mp_parameters`` is used before the variable ``SM_HP_MP_PARAMETERS``.

    Raises:
        JobConfigError: They are not a JSON object.
    """
    source, given = f"The hyperparameter {_NAME}", job.hyperparameters.reserved.get(_NAME)
    if given is None:
        source, given = f"The variable {_VARIABLE}", os.environ.get(_VARIABLE)
    if isinstance(given, str):
        with suppress(ValueError):
            given = json.loads(given or "{}")
    if given is not None and not isinstance(given, dict):
        raise JobConfigError(f"{source} is {str(given)[:120]!r}, which is not a JSON object.", hint=_HINT)
    return given or {}


@dataclass(frozen=True)
class SMPParameters:
    """The parameters of AWS's model parallel library 1.x that a training loop must know; the library reads the others.

    The product of the pipeline and the tensor parallel degree divides the world; the rest is data parallel.
    Source: SageMaker Python SDK 2.x, "Run a Distributed Training Job Using the SageMaker Python SDK: Parameters for
    ``smdistributed``".

    Args:
        pipeline_parallel_degree: Partitions of the model; ``partitions`` before release 1.6.
        tensor_parallel_degree: Processes that share the tensors of one partition.
        sharded_data_parallel_degree: Processes over which the states of parameters and optimizer are sharded.
        microbatches: Pieces of a batch.
        ddp: Whether there is data or tensor parallelism.
        placement_strategy: ``cluster``, ``spread``, or an order of the letters D, P and T.
        pipeline: ``interleaved`` or ``simple``.
        optimize: What the partition minimizes: ``memory`` or ``speed``.
        fp16: Whether the library trains in half precision, with master weights and its own loss scale.
        bf16: The same in bfloat16, with sharded data parallelism.
        shard_optimizer_state: Whether each data-parallel rank keeps a part of the optimizer's state.
        prescaled_batch: Whether the processes of a tensor parallel group read the same batch.

    Example::

        >>> parameters = SMPParameters.parse({"partitions": 2, "microbatches": 4, "ddp": True})
        >>> parameters.pipeline_parallel_degree, parameters.mp_size, parameters.microbatches
        (2, 2, 4)
    """

    pipeline_parallel_degree: int = 1
    tensor_parallel_degree: int = 1
    sharded_data_parallel_degree: int = 1
    microbatches: int = 1
    ddp: bool = False
    placement_strategy: str = "cluster"
    pipeline: str = "interleaved"
    optimize: str = "memory"
    fp16: bool = False
    bf16: bool = False
    shard_optimizer_state: bool = False
    prescaled_batch: bool = False
    given: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def parse(cls, given: Mapping[str, Any]) -> "SMPParameters":
        """Take the parameters, by their names in any release of the library.

        Raises:
            JobConfigError: A value has another type, or two names of one parameter have different values.
        """
        values: Dict[str, Any] = {}
        known = {each.name: type(each.default) for each in fields(cls) if each.name != "given"}
        for name, value in given.items():
            current = _ALIASES.get(name, name)
            if current not in known:
                continue
            converted = _converted(value, known[current])
            if converted is None:
                raise JobConfigError(
                    f"{name} of {_NAME} is {value!r}, which is no {known[current].__name__}.", hint=_HINT
                )
            if values.setdefault(current, converted) != converted:
                raise JobConfigError(f"{_NAME} sets {name} and {current} to different values.", hint="Leave one out.")
        return cls(**values, given=dict(given))

    @property
    def mp_size(self) -> int:
        """Processes that hold one replica of the model together."""
        return self.pipeline_parallel_degree * self.tensor_parallel_degree

    def check_world(self, world_size: int) -> None:
        """Check the degrees in a world of this many processes.

        Raises:
            JobConfigError: They do not divide it, or need ``ddp``.
        """
        if world_size % self.mp_size:
            raise JobConfigError(
                f"{_NAME} splits the model over {self.mp_size} processes, which do not divide the {world_size} of the "
                "job.",
                hint="Set pipeline_parallel_degree and tensor_parallel_degree to divisors, or processes_per_host of "
                "mpi.",
            )
        if not self.ddp and (self.tensor_parallel_degree > 1 or world_size > self.mp_size):
            raise JobConfigError(
                f"{_NAME} has no ddp, and tensor parallelism or data parallelism over {world_size} processes needs it.",
                hint='Add "ddp": True to the parameters.',
            )


def _converted(value: Any, kind: type) -> Optional[Any]:
    """A value of a JSON object, or of an API call in which each is a string; ``None`` if it is of another type."""
    if isinstance(value, str) and kind is not str:
        try:
            value = json.loads(value.lower())
        except ValueError:
            return None
    if kind is int and type(value) is int and value > 0:
        return value
    return value if kind is not int and type(value) is kind else None
