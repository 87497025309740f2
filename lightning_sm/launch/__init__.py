"""Sends training and tuning jobs to SageMaker: ``lightning-sm launch`` and ``lightning-sm tune``.

A request is made first, as a frozen value that can be printed and rehearsed, and sent second::

    from lightning_sm.launch import Account, create_job_request, settings_of

    settings = settings_of({"image": "pytorch-2.8-gpu", "instance_type": "ml.g5.xlarge", "role": role})
    print(create_job_request(settings, Account("us-east-1", "bucket"), name="job-1"))
"""

from typing import List

from lightning_sm.errors import LaunchError
from lightning_sm.launch._check import check_project
from lightning_sm.launch._command import main
from lightning_sm.launch._estimator import estimator_inputs, estimator_kwargs
from lightning_sm.launch._images import Image, find_image
from lightning_sm.launch._jobs import artifacts, jobs, logs, stop
from lightning_sm.launch._model_trainer import model_trainer_calls, model_trainer_kwargs
from lightning_sm.launch._package import PackedSource, pack_source
from lightning_sm.launch._project import Problem
from lightning_sm.launch._refusals import check_request
from lightning_sm.launch._request import Account, JobRequest, create_job_request
from lightning_sm.launch._settings import Channel, Instances, LaunchSettings, settings_of
from lightning_sm.launch._tune import check_tuning_request, tune
from lightning_sm.launch._tuning import TuningRequest, TuningSettings, create_tuning_request, tuning_settings_of
from lightning_sm.launch._words import hyperparameters_of

__all__ = [
    "Account",
    "Channel",
    "Image",
    "Instances",
    "JobRequest",
    "LaunchError",
    "LaunchSettings",
    "PackedSource",
    "Problem",
    "TuningRequest",
    "TuningSettings",
    "artifacts",
    "check_project",
    "check_request",
    "check_tuning_request",
    "create_job_request",
    "create_tuning_request",
    "estimator_inputs",
    "estimator_kwargs",
    "find_image",
    "hyperparameters_of",
    "jobs",
    "logs",
    "main",
    "model_trainer_calls",
    "model_trainer_kwargs",
    "pack_source",
    "settings_of",
    "stop",
    "tune",
    "tuning_settings_of",
]


def __dir__() -> List[str]:
    return sorted(__all__)
