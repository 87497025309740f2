"""Sends training and tuning jobs to SageMaker: ``lightning-sm launch`` and ``lightning-sm tune``.

The body of the API's request is made first, a value that can be printed, checked and rehearsed, and sent second::

    from lightning_sm.launch import Account, create_job_request, settings_of

    settings = settings_of({"image": "pytorch-2.8-gpu", "instance_type": "ml.g5.xlarge", "role": role})
    print(create_job_request(settings, Account("us-east-1", "bucket"), name="job-1"))
"""

from lightning_sm._doctor import Finding
from lightning_sm.errors import LaunchError
from lightning_sm.launch._arguments import hyperparameters_of
from lightning_sm.launch._command import check_arguments, check_project, main, tune
from lightning_sm.launch._images import Image, find_image
from lightning_sm.launch._jobs import artifacts, jobs, logs, stop
from lightning_sm.launch._limits import check_limits
from lightning_sm.launch._package import PackedSource, pack_source
from lightning_sm.launch._request import Account, JobRequest, create_job_request
from lightning_sm.launch._send import send
from lightning_sm.launch._settings import LaunchSettings, TuningSettings, settings_of, tuning_settings_of
from lightning_sm.launch._tuning import create_tuning_request, draw
from lightning_sm.launch._watch import follow

__all__ = [
    "Account",
    "Finding",
    "Image",
    "JobRequest",
    "LaunchError",
    "LaunchSettings",
    "PackedSource",
    "TuningSettings",
    "artifacts",
    "check_arguments",
    "check_limits",
    "check_project",
    "create_job_request",
    "create_tuning_request",
    "draw",
    "find_image",
    "follow",
    "hyperparameters_of",
    "jobs",
    "logs",
    "main",
    "pack_source",
    "send",
    "settings_of",
    "stop",
    "tune",
    "tuning_settings_of",
]
