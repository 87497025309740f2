"""``Report``: what is known of a fit at its end, as one frozen value, and the rows of its tables."""

import json
import os
import sys
from dataclasses import dataclass, fields, replace
from enum import Enum
from typing import Any, Callable, Iterator, List, Mapping, Optional, Tuple

from lightning_sm._export import distribution_versions
from lightning_sm._failure import REDACTED, is_secret_name
from lightning_sm._lightning import Namespace
from lightning_sm._report.history import Attempt, Curve
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology
from lightning_sm._version import __version__

__all__ = [
    "Outcome",
    "Report",
    "Rows",
    "rows_of_export",
    "rows_of_job",
    "rows_of_topology",
    "rows_of_versions",
]

#: The rows of a table: a name and a text.
Rows = Tuple[Tuple[str, str], ...]

# Of model.json, in this order; the versions stand in a table of their own.
_EXPORT_KEYS = ("file", "format", "class_path", "submodule", "checkpoint", "monitor", "score", "epoch", "global_step",
                "ended", "stopped_by")  # fmt: skip
_MAX_TEXT = 2_000


class Outcome(str, Enum):
    """How a fit ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"

    def __str__(self) -> str:
        return str(self.value)


@dataclass(frozen=True)
class Report:
    """What the report of a fit shows.

    Args:
        outcome: How the fit ended.
        title: The name of the job.
        reason: Why it failed or stopped.
        ended: When it ended, in seconds since 1970 (UTC).
        seconds: How long the fit took, since the newest restart.
        epochs: The number of trained epochs.
        steps: The number of optimizer steps, those before restarts included.
        job: What SageMaker says of the job.
        topology: The processes, and what determined them.
        routing: The settings that SageMaker determined, one a line.
        versions: The versions of what took part.
        curves: Metrics, throughput and learning rates.
        attempts: The starts of the training; the first one and one for each restart.
        export: The description of the exported model; empty where none was exported.
        notes: What the report leaves out, one sentence each.
    """

    outcome: Outcome
    title: str = "Training"
    reason: Optional[str] = None
    ended: float = 0.0
    seconds: float = 0.0
    epochs: int = 0
    steps: int = 0
    job: Rows = ()
    topology: Rows = ()
    routing: Tuple[str, ...] = ()
    versions: Rows = ()
    curves: Tuple[Curve, ...] = ()
    attempts: Tuple[Attempt, ...] = ()
    export: Rows = ()
    notes: Tuple[str, ...] = ()

    def redacted(self, redact: Callable[[str], str]) -> "Report":
        """Return the report without secrets in its texts.

        Args:
            redact: Removes the secrets from a text.
        """
        changed = {field.name: _redacted(getattr(self, field.name), redact) for field in fields(self)}
        return Report(**changed)


def _redacted(value: Any, redact: Callable[[str], str]) -> Any:
    if isinstance(value, Enum):
        return value
    if isinstance(value, str):
        return redact(value)
    if isinstance(value, Attempt):
        return replace(value, checkpoint=None if value.checkpoint is None else redact(value.checkpoint))
    # Curves hold names of metrics.
    return tuple(_redacted_entry(entry, redact) for entry in value) if isinstance(value, tuple) else value


def _redacted_entry(entry: Any, redact: Callable[[str], str]) -> Any:
    """A row, whose name may say that its value is a secret of no known format, or an entry of another kind."""
    if not isinstance(entry, tuple):
        return _redacted(entry, redact)
    name, text = entry
    return redact(name), REDACTED if is_secret_name(name) else redact(text)


def rows_of_job(job: TrainingJob) -> Rows:
    """What SageMaker says of the job; empty outside a container."""
    if not job.in_container:
        return ()
    rows: List[Tuple[str, Any]] = [
        ("name", job.name),
        ("hosts", ", ".join(job.world_hosts)),
        ("this host", job.current_host),
        ("instance type", job.current_instance_type),
        ("GPUs of this host", job.num_gpus),
        ("network interface", job.network_interface_name),
    ]
    rows += [(f"channel {name}", channel.path) for name, channel in job.data_channels.items()]
    return _texts(rows)


def rows_of_topology(topology: Topology, *, world_size: int, num_nodes: int, backend: Optional[str] = None) -> Rows:
    """The processes that trained, each fact with the variable or file that it was read from.

    Args:
        topology: What the launcher set.
        world_size: The number of processes of the trainer.
        num_nodes: The number of its hosts.
        backend: The backend of the process group; ``None`` without one.
    """
    rows: List[Tuple[str, Any]] = [
        ("launcher", topology.launcher),
        ("processes", world_size),
        ("hosts", num_nodes),
        ("backend", backend),
    ]
    for name in ("world_size", "num_nodes", "local_world_size", "main_address", "main_port"):
        value = getattr(topology, name)
        if value is not None:
            rows.append((name, f"{value} ← {topology.sources.get(name, 'default')}"))
    return _texts(rows)


def rows_of_versions(namespace: Namespace) -> Rows:
    """The versions of what took part in the training.

    Args:
        namespace: Lightning's namespace.
    """
    import torch

    rows: List[Tuple[str, Any]] = [
        ("lightning-sm", __version__),
        (namespace.name, namespace.module().__version__),
        ("torch", torch.__version__),
        ("CUDA", torch.version.cuda),
        ("NCCL", _nccl_version(torch)),
        ("Python", sys.version.split()[0]),
    ]
    return _texts([*rows, *distribution_versions(("numpy", "torchvision", "torchmetrics", "transformers")).items()])


def _nccl_version(torch: Any) -> Optional[str]:
    if torch.version.cuda is None:
        return None
    try:
        return ".".join(map(str, torch.cuda.nccl.version()))
    except Exception:  # a build of torch without NCCL
        return None


def rows_of_export(path: str) -> Rows:
    """The description of an exported model; empty where it cannot be read.

    Args:
        path: The file ``model.json``.
    """
    try:
        with open(path, encoding="utf-8") as file:
            content = json.load(file)
    except (OSError, ValueError):
        return ()
    if not isinstance(content, Mapping):
        return ()
    rows: List[Tuple[str, Any]] = [("directory", os.path.dirname(path))]
    rows += [(name, content.get(name)) for name in _EXPORT_KEYS]
    rows.append(("files", ", ".join(map(str, content.get("files") or ()))))
    for name in ("example", "comparison", "metrics", "hparams", "details"):
        rows += _flat(name, content.get(name))
    return _texts(rows)


def _flat(name: str, value: Any) -> Iterator[Tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield f"{name}.{key}", inner if isinstance(inner, (str, int, float)) or inner is None else json.dumps(inner)


def _texts(rows: List[Tuple[str, Any]]) -> Rows:
    """The rows that have a value, as text of a bounded length."""
    return tuple((name, str(value)[:_MAX_TEXT]) for name, value in rows if value is not None and str(value) != "")
