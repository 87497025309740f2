"""The container's side of a job: the files under ``/opt/ml`` and the variables, as SageMaker would give them."""

from __future__ import annotations

import json
import os
import tarfile
from pathlib import Path
from typing import Dict, Mapping, Tuple

from ._request import RehearsalRequest

__all__ = ["config_files", "container_environment", "pack_source", "write_ml"]

# Left out as the archive is made: never part of a program, and often larger than it.
_NOT_SOURCE = frozenset({"__pycache__", ".git", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"})

# What the machine may tell a container. The rest of the caller's shell stays out: a stray RANK would change the job.
_PASSED_ON = (
    "PATH",
    "LD_LIBRARY_PATH",
    "CUDA_VISIBLE_DEVICES",
    "SSL_CERT_FILE",
    "REQUESTS_CA_BUNDLE",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "http_proxy",
    "https_proxy",
    "no_proxy",
)
_PASSED_ON_PREFIXES = ("AWS_", "PIP_")

# As the Dockerfiles of the PyTorch training images set them.
_IMAGE = {
    "LANG": "C.UTF-8",
    "LC_ALL": "C.UTF-8",
    "PYTHONUNBUFFERED": "1",
    "PYTHONDONTWRITEBYTECODE": "1",
    "PYTHONIOENCODING": "UTF-8",
    "SAGEMAKER_TRAINING_MODULE": "sagemaker_pytorch_container.training:main",
}


def config_files(request: RehearsalRequest, host: str, *, interface: str, base: str) -> Dict[str, Dict[str, object]]:
    """The content of each file under ``input/config`` for ``host``, whose ``/opt/ml`` is ``base``."""
    files: Dict[str, Dict[str, object]] = {
        "hyperparameters.json": dict(request.hyperparameters),
        "inputdataconfig.json": {channel.name: dict(channel.settings) for channel in request.channels},
        "resourceconfig.json": request.resource_config(host, interface),
    }
    if request.has_checkpoints:
        files["checkpointconfig.json"] = {
            "LocalPath": checkpoint_path(request, base),
            "S3Uri": f"s3://rehearsal/{request.job_name}/checkpoints",
        }
    return files


def checkpoint_path(request: RehearsalRequest, base: str) -> str:
    """``CheckpointConfig.LocalPath`` where ``/opt/ml`` is ``base``."""
    prefix = "/opt/ml/"
    path = request.checkpoint_path
    return f"{base}/{path[len(prefix) :]}" if path.startswith(prefix) else path


def write_ml(request: RehearsalRequest, host: str, ml: Path, *, interface: str, base: str) -> None:
    """Make the folders and files that a container finds under ``/opt/ml`` when it starts."""
    # The output folder matters: without it the toolkit cannot write its failure file and ends with 0.
    for folder in ("input/config", "input/data", "model", "output/data", "code"):
        (ml / folder).mkdir(parents=True, exist_ok=True)
    for name, content in config_files(request, host, interface=interface, base=base).items():
        (ml / "input" / "config" / name).write_text(json.dumps(content), encoding="utf-8")


def container_environment(request: RehearsalRequest, host_variables: Mapping[str, str], *, home: str) -> Dict[str, str]:
    """The variables of a container: the image's, the platform's, then the request's own, which win."""
    machine = {
        name: value
        for name, value in host_variables.items()
        if name in _PASSED_ON or name.startswith(_PASSED_ON_PREFIXES)
    }
    platform = {
        "HOME": home,
        "TRAINING_JOB_NAME": request.job_name,
        "TRAINING_JOB_ARN": f"arn:aws:sagemaker:us-east-1:000000000000:training-job/{request.job_name}",
        "AWS_REGION": host_variables.get("AWS_REGION", "us-east-1"),
    }
    return {**machine, **_IMAGE, **platform, **dict(request.environment)}


def pack_source(source: Path, archive: Path) -> Tuple[str, ...]:
    """Pack a source folder as SDK v2 does, and tell the names in it."""
    archive.parent.mkdir(parents=True, exist_ok=True)

    def wanted(info: tarfile.TarInfo) -> tarfile.TarInfo | None:
        return None if os.path.basename(info.name) in _NOT_SOURCE else info

    with tarfile.open(str(archive), "w:gz", compresslevel=1) as packed:
        for path in sorted(source.iterdir()):
            packed.add(str(path), arcname=path.name, filter=wanted)
        return tuple(packed.getnames())
