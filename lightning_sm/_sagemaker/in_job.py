"""Whether this process runs in a SageMaker training container."""

import os
from typing import Mapping

__all__ = ["config_directory", "is_in_job"]


def config_directory(environ: Mapping[str, str]) -> str:
    """Return the directory of the job's files: ``SM_INPUT_CONFIG_DIR``, else below ``SAGEMAKER_BASE_DIR``."""
    base = environ.get("SAGEMAKER_BASE_DIR") or "/opt/ml"
    return environ.get("SM_INPUT_CONFIG_DIR") or os.path.join(base, "input", "config")


def is_in_job(environ: Mapping[str, str]) -> bool:
    """Whether there is ``resourceconfig.json``, or the variables ``SM_CURRENT_HOST`` and ``SM_HOSTS`` name the hosts.

    Args:
        environ: The environment variables.
    """
    has_variables = bool(environ.get("SM_CURRENT_HOST")) and bool(environ.get("SM_HOSTS"))
    return has_variables or os.path.exists(os.path.join(config_directory(environ), "resourceconfig.json"))
