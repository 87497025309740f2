"""The command line: ``python -m lightning_sm.cli fit --config FILE``, and the class behind it.

A project's ``train.py`` for SageMaker is complete with two lines::

    from lightning_sm.cli import main
    main()
"""

import atexit
import gc
import os
import sys
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Collection, Dict, Iterator, List, Optional, Sequence

from lightning_sm._failure import failure_reported, read_job
from lightning_sm._lightning import Namespace, choose_namespace, namespaced_class, resolve_class
from lightning_sm._lightning.legacy import add_any_data_module, cli_base_path, save_config_arguments
from lightning_sm._lightning.wrapped_method import named_arguments
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm._settings.given import RunContext, as_list
from lightning_sm._settings.line import JobLine, config_text
from lightning_sm._settings.options import SageMakerOptions
from lightning_sm._settings.routed import Routing
from lightning_sm._settings.run import RunParser, find_model_class, raise_refusals, trains
from lightning_sm._trainer_defaults import complete_arguments, stay_on_one_host
from lightning_sm.callbacks.job_callbacks import monitor_callbacks, own_callbacks, upload_callbacks

if TYPE_CHECKING:
    from pytorch_lightning.cli import LightningCLI as _Base

    # For type checkers and the API reference; `__getattr__` makes the class.
    from lightning_sm.cli import SageMakerCLIMixin as SageMakerCLI
else:
    _Base = object

__all__ = ["SageMakerCLI", "main"]


class SageMakerCLIMixin(_Base):
    """``LightningCLI`` that configures itself in a SageMaker training container.

    Outside of one it is ``LightningCLI``. In a container a missing subcommand means ``fit``, hyperparameters are
    settings of the types that their author gave them, input channels and directories are set as arguments of data
    modules, loggers and checkpoint callbacks, the number of processes comes from the launcher, and the trained model is
    written to the model directory. A project may subclass it as it would subclass ``LightningCLI``. Under an external
    launcher outside a container (``torchrun``) only the number of processes is set.

    Highest first, a setting comes from: the command line, hyperparameters, environment variables of ``LightningCLI``
    (with ``parser_kwargs={"default_env": True}``), SageMaker's directories, which replace local paths only, config
    files in their order, defaults of the project, and defaults of classes. A config file that was typed replaces what
    was typed before it.

    Files that are read:

    ``input/config/*.json`` below the base directory
      The job: hosts, channels, hyperparameters, the checkpoint directory. See :class:`~lightning_sm.TrainingJob`.

    Config files
      Those of ``--config`` and of the hyperparameter ``config``, which may begin with the name of a channel.

    Files that are written:

    ``output/failure``
      The reason of a failure, in a container.

    Environment variables:

    ``SAGEMAKER_BASE_DIR``, ``SM_*``, ``RANK``, ``WORLD_SIZE``, ``OMPI_*``, ``TORCHELASTIC_*``
      The job and its processes. Set by SageMaker's container and by launchers, and absent elsewhere. See
      :class:`~lightning_sm.TrainingJob` and :class:`~lightning_sm.Topology`.

    ``PL_*``
      Settings by their keys, such as ``PL_FIT__TRAINER__MAX_EPOCHS``, where the project asks for ``default_env``.

    Args:
        *args: What ``LightningCLI`` takes.
        ignore_hyperparameters: Names of hyperparameters that the script reads by itself, such as those of its own
            ``argparse``, and that are no settings of this CLI.
        **kwargs: What ``LightningCLI`` takes. In a container the saved config may overwrite an older one unless
            ``save_config_kwargs`` says otherwise, because a restarted job finds its own.

    Raises:
        JobConfigError: A file or variable of the job is broken.
        DoctorError: ``sagemaker.doctor`` is set, and something on this host is an error.
        TopologyError: The launcher's variables contradict each other, or a setting asks for another number of hosts or
            processes than the job has.
        HyperparameterError: The parser refuses a setting of a job; the job's failure reason says which.
        RoutingError: It is ambiguous which parameter a channel feeds, or the channel holds no files to read.

    Example::

        from lightning_sm import SageMakerCLI
        from my_project import MyData, MyModel

        SageMakerCLI(MyModel, MyData)
    """

    namespace: Namespace

    def __init__(self, *args: Any, ignore_hyperparameters: Collection[str] = (), **kwargs: Any) -> None:
        self._ignored = (ignore_hyperparameters,) if isinstance(ignore_hyperparameters, str) else ignore_hyperparameters
        job = read_job()
        self.routing = Routing()
        with failure_reported(job):
            self.run_context = RunContext(job, Topology.resolve(job=job), self.namespace)
            if job.in_container:
                args, kwargs = (), named_arguments(super().__init__, args, kwargs)
                for name, value in save_config_arguments(self.namespace).items():
                    given = kwargs.get(name)
                    kwargs[name] = {**value, **(given or {})} if isinstance(value, dict) else kwargs.get(name, value)
            super().__init__(*args, **kwargs)

    @property
    def job(self) -> TrainingJob:
        """The training job."""
        return self.run_context.job

    @property
    def topology(self) -> Topology:
        """The processes that the launcher started."""
        return self.run_context.topology

    @property
    def _is_active(self) -> bool:
        return self.job.in_container or self.topology.launcher != Launcher.LOCAL

    def add_default_arguments_to_parser(self, parser: Any) -> None:
        """Add the group ``sagemaker`` beside Lightning's own arguments."""
        super().add_default_arguments_to_parser(parser)
        parser.add_class_arguments(SageMakerOptions, "sagemaker")

    def add_core_arguments_to_parser(self, parser: Any) -> None:
        """Add trainer, model and data."""
        super().add_core_arguments_to_parser(parser)
        add_any_data_module(self.namespace, parser)

    def parse_arguments(self, parser: Any, *args: Any) -> None:
        """Parse the command line; in a job, together with hyperparameters and routed settings."""
        given = args[0] if args and args[0] is not None else sys.argv[1:]
        if not self._is_active or not self._parse_run(parser, given):
            super().parse_arguments(parser, *args)
        self._fill_options()
        if self.run_context.options.doctor:
            from lightning_sm._doctor import CHECKS, examine_host

            examine_host(CHECKS, self.job, self.topology)

    def _parse_run(self, parser: Any, given: Any) -> bool:
        """Parse arguments, or a mapping that a program hands over; returns whether there is a subcommand to run."""
        args: Any = given
        if isinstance(given, dict) or hasattr(given, "as_dict"):
            values = dict(given if isinstance(given, dict) else given.as_dict())
            subcommand = values.pop("subcommand", None)
            subcommand = subcommand or next((name for name in self._subcommands if name in values), None)
            inner = values if subcommand is None else values.get(subcommand, {})
            args = [*([] if subcommand is None else [subcommand]), f"--config={config_text(inner)}"]
        line = JobLine.read(args, self.job, self._subcommands, self._ignored)
        if line.subcommand is None and self._subcommands:
            return False
        classes = {
            "data": (self.datamodule_class, self.subclass_mode_data),
            "model": (self.model_class, self.subclass_mode_model),
        }
        subparser = parser if line.subcommand is None else self._parser(line.subcommand)
        run = RunParser(self.run_context, parser, subparser, line, classes)
        self.config = run.parse()
        self.run_context, self.routing = run.context, run.routing
        return True

    def _fill_options(self) -> None:
        """Fill the group ``sagemaker`` where nothing stands below it in a config."""
        subcommand = self.config.get("subcommand")
        config = self.config if subcommand is None else self.config[subcommand]
        if config.get("sagemaker", "") is None:
            config["sagemaker"] = type(config)(**asdict(SageMakerOptions()))

    def _parse_ckpt_path(self) -> None:
        """Take the model's hyperparameters from the checkpoint of ``ckpt_path``, as Lightning does since 2.5.5."""
        parent: Any = super()
        if not self._is_active:
            parent._parse_ckpt_path()
            return
        hint = "Name a checkpoint of this model as ckpt_path, or the model's class that the checkpoint was made with."
        with raise_refusals({self.parser, self._parser(self.config.get("subcommand"))}, lambda _: hint):
            parent._parse_ckpt_path()

    @property
    def _subcommands(self) -> Dict[str, Any]:
        return dict(self.subcommands()) if hasattr(self, "_subcommand_method_arguments") else {}

    def _instantiate_trainer(self, config: Dict[str, Any], callbacks: List[Any]) -> Any:
        context = replace(self.run_context, options=self._get(self.config_init, "sagemaker"))
        # Before the loggers are completed, which no config holds.
        portable_config = self._portable_config()
        self.routing = complete_arguments(config, context, self.routing)
        stay_on_one_host(config, context)
        callbacks = [*callbacks, *upload_callbacks(self.routing.uploads, context)]
        if "--trainer.callbacks" in self._parser(self.subcommand)._option_string_actions:
            # It is missing where an argument follows a file with an empty `trainer:`; Lightning would add no callbacks.
            config.setdefault("callbacks", None)
        if config.get("callbacks") is not None:
            config["callbacks"] = as_list(config["callbacks"])  # Lightning 1.5 would extend it as it stands
        present = [*as_list(config.get("callbacks")), *callbacks, *as_list(self.trainer_defaults.get("callbacks"))]
        if trains(self.subcommand):
            own = own_callbacks(
                config,
                present,
                context,
                config=self._config_yaml(),
                portable_config=portable_config,
                routing=self.routing.lines,
            )
        else:
            own = monitor_callbacks(config, present, context)
        callbacks = [*callbacks, *own]
        return super()._instantiate_trainer(config, callbacks)

    def _config_yaml(self) -> str:
        config = self.config.get(str(self.subcommand), self.config)
        return str(self._parser(self.subcommand).dump(config, skip_none=False))

    def _portable_config(self) -> Optional[str]:
        """The config without what SageMaker decided, which can be run elsewhere; ``None`` where nothing was decided."""
        import yaml

        if not self.routing.settings:
            return None
        return config_text(self.routing.undone(yaml.safe_load(self._config_yaml())))


_MIXIN = "lightning_sm.cli:SageMakerCLIMixin"


def sagemaker_cli_class(namespace: Namespace) -> type:
    """Return ``SageMakerCLI`` for one of Lightning's namespaces."""
    return namespaced_class(namespace, "SageMakerCLI", _MIXIN, cli_base_path(namespace))


def main(args: Optional[Sequence[str]] = None) -> None:
    """Run a Lightning project from its config: ``fit``, ``validate``, ``test`` or ``predict``.

    Any ``LightningModule`` and ``LightningDataModule`` is named by its class path. The class of the model determines
    whether ``pytorch_lightning`` or ``lightning.pytorch`` is used. Files and variables: see :class:`SageMakerCLI`.

    Args:
        args: The command line instead of ``sys.argv[1:]``.

    Raises:
        LightningSMError: See :class:`SageMakerCLI`.

    Example::

        from lightning_sm.cli import main

        main(["fit", "--config", "config.yaml", "--trainer.max_epochs=5"])
    """
    given = list(sys.argv[1:] if args is None else args)
    # The working directory is where a project's modules are; scripts elsewhere and console scripts do not look there.
    if not {"", os.getcwd()}.intersection(sys.path):
        sys.path.insert(0, "")
    job = read_job()
    with failure_reported(job), _no_collections():
        namespace = choose_namespace(find_model_class(given, job))
    if args is not None:
        sys.argv = [sys.argv[0], *given]
    cli: Any = sagemaker_cli_class(namespace)
    cli()


@contextmanager
def _no_collections() -> Iterator[None]:
    """Disable garbage collection while torch and Lightning are imported, and exempt what they made from it.

    The imports leave a million objects that stay to the end. Without ``gc.freeze`` the first collection of the oldest
    generation goes through all of them, which takes about a twelfth of the CPU time of a short ``fit``, 0.3 to 0.5 s
    (measured by ``benchmarks/gc_time.py``).
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        # Bindings in C++ (nanobind) complain at the exit about what was not collected.
        atexit.register(gc.unfreeze)
        if was_enabled:
            gc.enable()


def __getattr__(name: str) -> Any:
    if name == "SageMakerCLI":
        return resolve_class(name, sagemaker_cli_class)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> List[str]:
    return sorted(__all__)


if __name__ == "__main__":
    main()
