"""Settings and runs as values, for tests of what is decided from them."""

from lightning_sm._config.arguments import JobArguments, nest
from lightning_sm._config.options import SageMakerOptions
from lightning_sm._config.settings import Layer, Provenance, RunContext, Settings
from lightning_sm._lightning import Namespace
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology

__all__ = ["CONFIG_FILE", "TYPED", "context_of", "settings_of"]

CONFIG_FILE = Provenance(Layer.CONFIG, "a.yaml")
TYPED = Provenance(Layer.COMMAND_LINE)


def settings_of(configs=(), hyperparameters=None, typed=(), subcommand=None, *, defaults=None, given=None):
    """What config files, hyperparameters, words, the project and a program give."""
    arguments = JobArguments(subcommand, tuple(configs), hyperparameters or {}, typed=tuple(typed))
    return arguments.as_written(defaults).with_layer(nest(given or {}), TYPED)


def context_of(job=None, settings=None, options=None, topology=None, find_class=None, namespace="pytorch_lightning"):
    """A run of which only what matters is given."""

    class Context(RunContext):
        def find_class(self, name):
            return find_class(name) if find_class is not None else super().find_class(name)

    return Context(
        job or TrainingJob(),
        topology or Topology(Launcher.LOCAL),
        Namespace(namespace),
        settings or Settings(),
        options or SageMakerOptions(),
    )
