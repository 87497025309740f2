"""Predicts before a job is paid for: ``lightning-sm plan`` says what more hosts bring, and what limits them."""

from lightning_sm._plan.command import main
from lightning_sm._plan.instances import Instance, find_instance, instance_types, network_of
from lightning_sm._plan.model import Network, Option, Prediction, Workload, fewest_settings, pays_below, predict

__all__ = [
    "Instance",
    "Network",
    "Option",
    "Prediction",
    "Workload",
    "fewest_settings",
    "find_instance",
    "instance_types",
    "main",
    "network_of",
    "pays_below",
    "predict",
]
