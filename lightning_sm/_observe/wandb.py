"""Lets Lightning's ``WandbLogger`` continue the Weights & Biases run of a job that is started again."""

import os
from typing import Any, Dict, Mapping

from lightning_sm._failure import is_secret_name
from lightning_sm._observe.names import numbered

__all__ = ["continue_wandb_run"]


def continue_wandb_run(logger: Any, job_name: str, hyperparameters: Mapping[str, Any]) -> Dict[str, str]:
    """Give a ``WandbLogger`` that has begun no run an id which each start of this job gives it.

    Lightning passes ``resume="allow"``, so that W&B continues the run of that id or creates it. In a training job W&B
    itself would replace every id, also one that the project sets, by a random one, unless ``WANDB_RUN_ID`` is set:
    ``wandb/integration/sagemaker/resources.py``, ``set_run_id``. What else W&B does in a training job is done here: it
    sets the group, and the hyperparameters in the run's config.

    Environment variables, which the user sets and which win: ``WANDB_RUN_ID``, ``WANDB_NAME``, ``WANDB_RUN_GROUP``.

    Args:
        logger: The logger.
        job_name: The name of the job.
        hyperparameters: Those of the job.

    Returns:
        What was set, by the name of the logger's argument.
    """
    arguments = logger._wandb_init
    if logger._experiment is not None or os.environ.get("WANDB_RUN_ID") or hasattr(logger, "_job_name"):
        return {}
    logger._job_name = job_name
    wanted = {"id": job_name, "name": job_name, "group": job_name}
    if not arguments.get("id"):
        wanted["id"] = wanted["name"] = numbered(job_name, "wandb")
    variables = {"name": "WANDB_NAME", "group": "WANDB_RUN_GROUP"}
    changed = {
        name: value
        for name, value in wanted.items()
        if not arguments.get(name) and not os.environ.get(variables.get(name, ""))
    }
    arguments.update(changed)
    if isinstance(arguments.get("config") or {}, dict):
        public = {name: value for name, value in hyperparameters.items() if not is_secret_name(name)}
        arguments["config"] = {"sagemaker_training_job_name": job_name, **public, **(arguments.get("config") or {})}
    settings = arguments.get("settings") or {}
    if isinstance(settings, dict):
        arguments["settings"] = {"sagemaker_disable": True, **settings}
    else:
        settings.sagemaker_disable = True
    logger._id, logger._name = arguments["id"], arguments.get("name")
    return changed
