"""Runs as values, for tests of what is decided from them."""

import jsonargparse

from lightning_sm._lightning import Namespace
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm._settings.given import Given, RunContext
from lightning_sm._settings.line import Part, leaves
from lightning_sm._settings.options import SageMakerOptions

__all__ = ["context_of", "given_of"]


def given_of(file=None, **explicit):
    """What a config file says, and what a hyperparameter, a word or a program says over it, both nested."""
    values = jsonargparse.Namespace()
    parts = [Part("a.yaml", dict(leaves(file or {})), path="a.yaml"), Part("a hyperparameter", dict(leaves(explicit)))]
    for part in parts:
        for key, value in part.values.items():
            values[key] = value
    return Given(values.as_dict(), parts)


def context_of(job=None, given=None, options=None, topology=None, namespace="pytorch_lightning"):
    """A run of which only what matters is given."""
    return RunContext(
        job or TrainingJob(),
        topology or Topology(Launcher.LOCAL),
        Namespace(namespace),
        given or Given(),
        options or SageMakerOptions(),
    )
