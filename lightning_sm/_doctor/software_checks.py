"""Checks of images, versions and libraries."""

from typing import Tuple

from lightning_sm._doctor.finding import Check

__all__ = ["CHECKS"]

CHECKS: Tuple[Check, ...] = ()
