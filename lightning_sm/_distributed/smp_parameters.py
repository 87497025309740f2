"""AWS's model parallel libraries 1.x and 2.x: what a job asks of them (``mp_parameters``), and their import."""

import importlib
import json
import os
from contextlib import suppress
from dataclasses import dataclass, fields
from typing import Any, Dict, Mapping, Type, TypeVar

from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import JobConfigError, StrategyUnavailableError

__all__ = ["SMPParameters", "TSMParameters", "import_library", "read_mp_parameters"]

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


def import_library(module: str, strategy: str, hint: str) -> Any:
    """Import a library that only some of AWS's images have.

    Args:
        module: Its name.
        strategy: The registered name of the strategy that needs it.
        hint: What to do without it.

    Raises:
        StrategyUnavailableError: It cannot be imported.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise StrategyUnavailableError(
            f"The strategy {strategy} needs AWS's library {module}, which cannot be imported ({error}).", hint=hint
        ) from error


_Self = TypeVar("_Self", bound="_Parameters")


@dataclass(frozen=True)
class _Parameters:
    """Parameters with their defaults. Of a number, that is the least value."""

    @classmethod
    def parse(cls: Type[_Self], given: Mapping[str, Any]) -> _Self:
        """Take the parameters of a job, by their names in any release of the library, and no others.

        Raises:
            JobConfigError: A value has another type, or two names of one parameter have different values.
        """
        values: Dict[str, Any] = {}
        defaults = {each.name: each.default for each in fields(cls)}
        for name, value in given.items():
            current = _ALIASES.get(name, name)
            if current not in defaults:
                continue
            if isinstance(value, str):  # of an API call, in which each is a string
                with suppress(ValueError):
                    value = json.loads(value.lower())
            default: Any = defaults[current]
            if type(value) is not type(default) or value < default:
                raise JobConfigError(f"{name} of {_NAME} is {value!r}, which it cannot be.", hint=_HINT)
            if values.setdefault(current, value) != value:
                raise JobConfigError(f"{_NAME} sets {name} and {current} to different values.", hint="Leave one out.")
        return cls(**values)


@dataclass(frozen=True)
class SMPParameters(_Parameters):
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
    fp16: bool = False
    bf16: bool = False
    shard_optimizer_state: bool = False
    prescaled_batch: bool = False

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


@dataclass(frozen=True)
class TSMParameters(_Parameters):
    """The parameters of AWS's model parallel library 2.x (``torch.sagemaker``) that a training loop must know.

    Source: AWS, SageMaker developer guide, "SMP v2 core feature configuration parameters".

    Args:
        hybrid_shard_degree: Processes over which FSDP shards; 0 and 1 leave that to FSDP.
        tensor_parallel_degree: Processes that share the tensors of a layer, and read the same data.
        context_parallel_degree: Processes that share a sequence, and read the same data.
        expert_parallel_degree: Processes that share the experts of a layer.

    Example::

        >>> parameters = TSMParameters.parse({"tensor_parallel_degree": 2, "context_parallel_degree": 2})
        >>> parameters.same_data, parameters.is_plain
        (4, False)
    """

    hybrid_shard_degree: int = 0
    tensor_parallel_degree: int = 1
    context_parallel_degree: int = 1
    expert_parallel_degree: int = 1

    @property
    def same_data(self) -> int:
        """Processes that read the same data."""
        return self.tensor_parallel_degree * self.context_parallel_degree

    @property
    def is_plain(self) -> bool:
        """Whether the model is that of FSDP alone, so that torch's checkpoints hold it."""
        return self.same_data * self.expert_parallel_degree == 1

    def check_world(self, world_size: int) -> None:
        """Check the degrees in a world of this many processes.

        Raises:
            JobConfigError: They do not divide it.
        """
        for degree in (self.same_data, self.expert_parallel_degree, max(1, self.hybrid_shard_degree)):
            if world_size % degree:
                raise JobConfigError(
                    f"{_NAME} has degrees of {degree} processes, which do not divide the {world_size} of the job: "
                    f"{self}.",
                    hint="Set the degrees to divisors of the number of processes.",
                )
