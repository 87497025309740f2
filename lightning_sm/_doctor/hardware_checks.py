"""Checks of GPUs, drivers, network cards and limits of the host."""

from typing import Tuple

from lightning_sm._doctor.finding import Check

__all__ = ["CHECKS"]

CHECKS: Tuple[Check, ...] = ()
