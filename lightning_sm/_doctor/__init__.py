"""Examines a host and its job for what fails late, silently or on another host only.

``finding`` holds the values, each ``*_checks`` module some checks; ``at_start`` is ``sagemaker.doctor: true``. The
command ``lightning-sm doctor`` stands above, because it knows ``launch`` as well.
"""

from typing import Tuple

from lightning_sm._doctor import data_checks, hardware_checks, job_checks, network_checks
from lightning_sm._doctor.at_start import examine_host
from lightning_sm._doctor.channel_files import list_files, replicated_channels
from lightning_sm._doctor.finding import Check, Finding, Machine, count_findings, examine, name_of

__all__ = [
    "CHECKS",
    "Check",
    "Finding",
    "Machine",
    "count_findings",
    "examine",
    "examine_host",
    "list_files",
    "name_of",
    "replicated_channels",
]

#: All checks.
CHECKS: Tuple[Check, ...] = (
    *job_checks.CHECKS,
    *data_checks.CHECKS,
    *network_checks.CHECKS,
    *hardware_checks.CHECKS,
)
