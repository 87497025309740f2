"""``Report``: what is known of a fit at its end, as one frozen value, and the rows of its tables."""

import json
import os
import sys
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, Iterable, Mapping, Optional, Tuple

from lightning_sm._lightning import Namespace
from lightning_sm._observe.history import History
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
_EXPORT_GROUPS = ("example", "comparison", "metrics", "hparams", "details")
_MAX_TEXT = 2_000


class Outcome(str, Enum):
    """How a fit ended."""

    COMPLETED = "completed"
    STOPPED = "stopped"
    FAILED = "failed"


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
        history: Metrics, throughput and learning rates, and the starts of the training.
        export: The description of the exported model; empty where none was exported.
        job: What SageMaker says of the job.
        topology: The processes, and what determined them.
        settings: The settings that SageMaker determined, one a line.
        versions: The versions of what took part.
    """

    outcome: Outcome
    title: str = "Training"
    reason: Optional[str] = None
    ended: float = 0.0
    seconds: float = 0.0
    epochs: int = 0
    steps: int = 0
    history: History = field(default_factory=History)
    export: Rows = ()
    job: Rows = ()
    topology: Rows = ()
    settings: Tuple[str, ...] = ()
    versions: Rows = ()


def rows_of_job(job: TrainingJob) -> Rows:
    """What SageMaker says of the job; empty outside a container."""
    if not job.in_container:
        return ()
    return _texts(
        [
            ("name", job.name),
            ("hosts", ", ".join(job.world_hosts)),
            ("this host", job.current_host),
            ("instance type", job.current_instance_type),
            ("GPUs of this host", job.num_gpus),
            ("network interface", job.network_interface_name),
            *((f"channel {name}", channel.path) for name, channel in job.data_channels.items()),
        ]
    )


def rows_of_topology(topology: Topology, *, world_size: int, num_nodes: int, backend: Optional[str] = None) -> Rows:
    """The processes that trained, each fact with the variable or file that it was read from.

    Args:
        topology: What the launcher set.
        world_size: The number of processes of the trainer.
        num_nodes: The number of its hosts.
        backend: The backend of the process group; ``None`` without one.
    """
    names = ("world_size", "num_nodes", "local_world_size", "main_address", "main_port")
    facts = ((name, getattr(topology, name)) for name in names)
    read = [(name, f"{value} ← {topology.sources.get(name, 'default')}") for name, value in facts if value is not None]
    return _texts(
        [
            ("launcher", topology.launcher),
            ("processes", world_size),
            ("hosts", num_nodes),
            ("backend", backend),
            *read,
        ]
    )


def rows_of_versions(namespace: Namespace, packages: Mapping[str, str]) -> Rows:
    """The versions of what took part in the training.

    Args:
        namespace: Lightning's namespace.
        packages: Those of other packages.
    """
    import torch

    nccl = None
    with suppress(Exception):  # a build of torch without NCCL
        nccl = ".".join(map(str, torch.cuda.nccl.version())) if torch.version.cuda else None
    return _texts(
        [
            ("lightning-sm", __version__),
            (namespace.name, namespace.module().__version__),
            ("torch", torch.__version__),
            ("CUDA", torch.version.cuda),
            ("NCCL", nccl),
            ("Python", sys.version.split()[0]),
            *packages.items(),
        ]
    )


def rows_of_export(path: str) -> Rows:
    """The description of an exported model.

    Args:
        path: The file ``model.json``.
    """
    with open(path, encoding="utf-8") as file:
        content = json.load(file)
    return _texts(
        [
            ("directory", os.path.dirname(path)),
            *((name, content.get(name)) for name in _EXPORT_KEYS),
            ("files", ", ".join(map(str, content.get("files") or ()))),
            *(
                (f"{name}.{key}", json.dumps(value) if isinstance(value, (list, dict)) else value)
                for name in _EXPORT_GROUPS
                for key, value in (content.get(name) or {}).items()
            ),
        ]
    )


def _texts(rows: Iterable[Tuple[str, Any]]) -> Rows:
    """The rows that have a value, as text of a bounded length."""
    return tuple((name, str(value)[:_MAX_TEXT]) for name, value in rows if value is not None and str(value) != "")
