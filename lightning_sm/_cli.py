"""What ``SageMakerCLI`` adds to Lightning's CLI, in either namespace."""

import json
import os
import sys
import tempfile
from typing import TYPE_CHECKING, Any, Dict, Iterator, List, Optional, Sequence

from lightning_sm._arguments import JobArguments
from lightning_sm._closest import closest_keys
from lightning_sm._failure import failure_reported
from lightning_sm._job import TrainingJob
from lightning_sm._lightning import Namespace
from lightning_sm._lightning._shims import configs_must_be_whole, save_config_arguments
from lightning_sm._log import log
from lightning_sm._options import SageMakerOptions
from lightning_sm._routing import Consumer, Routing, build_routing
from lightning_sm._routing._classes import find_class, options_from
from lightning_sm._settings import Settings, as_config
from lightning_sm._topology import Launcher, Topology
from lightning_sm._trainer import add_environment, as_list, own_callbacks
from lightning_sm.errors import HyperparameterError

if TYPE_CHECKING:
    from pytorch_lightning.cli import LightningCLI as _Base
else:
    _Base = object

__all__ = ["SageMakerCLIMixin"]


class SageMakerCLIMixin(_Base):
    """Lightning's CLI, at home in a SageMaker training container.

    On a laptop it is ``LightningCLI``. In a container a missing subcommand means ``fit``, hyperparameters are settings
    with the types that their author gave them, channels and directories find their way into data modules, loggers and
    checkpoints, the world comes from the launcher, and the trained model is written to the model directory. A project
    may subclass it, as it would ``LightningCLI``. What a person typed wins over hyperparameters, these over SageMaker's
    directories, these over local paths in config files, and these over the defaults of classes. Under an external
    launcher outside a container (``torchrun``) only the world is taken.

    It reads what :class:`~lightning_sm.TrainingJob` and :class:`~lightning_sm.Topology` name.

    Args:
        *args: What ``LightningCLI`` takes.
        **kwargs: What ``LightningCLI`` takes. In a container the saved config may overwrite an older one unless
            ``save_config_kwargs`` says otherwise, because a restarted job finds its own.

    Raises:
        JobConfigError: A file or variable of the job is broken.
        TopologyError: The launcher's numbers do not make a world.
        HyperparameterError: An argument of a job cannot be used; the job's failure reason says which.
        RoutingError: It is open which parameter a channel feeds, or the channel holds no files to read.
    """

    namespace: Namespace

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self.job = TrainingJob.resolve()
        with failure_reported(self.job):
            self.topology = Topology.resolve(job=self.job)
        self.routing = Routing()
        self.sagemaker_settings = Settings()
        if self.job.in_container:
            for name, value in save_config_arguments(self.namespace).items():
                given = kwargs.get(name)
                kwargs[name] = {**value, **(given or {})} if isinstance(value, dict) else kwargs.get(name, value)
        super().__init__(*args, **kwargs)

    @property
    def _is_active(self) -> bool:
        return self.job.in_container or self.topology.launcher != Launcher.LOCAL

    def add_default_arguments_to_parser(self, parser: Any) -> None:
        """Add the group ``sagemaker`` beside Lightning's own arguments."""
        super().add_default_arguments_to_parser(parser)
        parser.add_class_arguments(SageMakerOptions, "sagemaker")

    def parse_arguments(self, parser: Any, *args: Any) -> None:
        """Parse the command line; in a job, together with hyperparameters and what SageMaker decides."""
        if not self._is_active:
            super().parse_arguments(parser, *args)
            return
        given = args[0] if args and args[0] is not None else sys.argv[1:]
        with failure_reported(self.job):
            if isinstance(given, list):
                self._parse_words(parser, given)
            else:
                self._parse_object(parser, given)
        if self.routing and self.topology.is_rank_zero:
            log.info("%s", self.routing.table())

    def _parse_words(self, parser: Any, words: Sequence[str]) -> None:
        subcommands = self.subcommands() if hasattr(self, "_subcommand_method_arguments") else {}
        arguments = JobArguments.read(words, self.job, subcommands)
        self.sagemaker_settings = Settings.collect(
            arguments.configs, arguments.hyperparameters, arguments.typed, arguments.subcommand
        )
        self._route(arguments.subcommand)
        routed = self.routing.as_config()
        with tempfile.TemporaryDirectory(prefix="lightning-sm-") as folder:
            line: List[str] = [] if arguments.subcommand is None else [arguments.subcommand]
            if configs_must_be_whole(self.namespace):
                line += _config_words(folder, "merged.json", _deep_merge(_without_typed(arguments), routed))
                line += arguments.typed
            else:
                for path in arguments.configs:
                    line += ["--config", path]
                line += _config_words(folder, "hyperparameters.json", arguments.hyperparameters)
                line += arguments.typed
                line += _config_words(folder, "sagemaker.json", routed)
            self._parse_strictly(parser, line, arguments)

    def _parse_strictly(self, parser: Any, line: List[str], arguments: JobArguments) -> None:
        """Parse, and turn argparse's silent exit into an error that reaches the job's failure reason."""

        def refuse(message: object, *_: Any) -> None:
            problem = " ".join(str(message).split())
            subparser = parser if arguments.subcommand is None else self._parser(arguments.subcommand)
            similar = closest_keys(subparser, self.sagemaker_settings, self._find_class)
            raise HyperparameterError(problem, hint=similar or "Run the same command with --help to see every key.")

        parsers = [parser]
        if arguments.subcommand is not None:
            parsers.append(self._parser(arguments.subcommand))
        for each in parsers:
            each.error = refuse
        try:
            self.config = parser.parse_args(line)
        finally:
            for each in parsers:
                del each.error

    def _parse_object(self, parser: Any, given: Any) -> None:
        """Parse arguments that a program hands over as a mapping, which count as a command line."""
        values: Dict[str, Any] = given if isinstance(given, dict) else given.as_dict()
        subcommand = values.get("subcommand")
        section = values.get(subcommand, {}) if subcommand is not None else values
        self.sagemaker_settings = Settings.from_mapping(section)
        self._route(subcommand)
        routed = self.routing.as_config()
        merged = _deep_merge(routed, section)
        self.config = parser.parse_object(merged if subcommand is None else {**values, subcommand: merged})

    def _route(self, subcommand: Optional[str]) -> None:
        settings = self.sagemaker_settings
        self.routing = build_routing(
            self.job,
            self.topology,
            settings,
            options=options_from(settings),
            consumer=self._consumer(settings),
            find_class=self._find_class,
            namespace=self.namespace.name,
        )

    def _consumer(self, settings: Settings) -> Optional[Consumer]:
        """The data module, or the model where there is none."""
        for key, fixed, subclass_mode in (
            ("data", self.datamodule_class, self.subclass_mode_data),
            ("model", self.model_class, self.subclass_mode_model),
        ):
            named = settings.get(key)
            name = named if isinstance(named, str) else settings.get(f"{key}.class_path")
            cls = self._find_class(name) if isinstance(name, str) else fixed
            if isinstance(cls, type):
                path = f"{cls.__module__}.{cls.__qualname__}" if subclass_mode else None
                return Consumer(key, cls, path)
        return None

    def _find_class(self, name: str) -> Optional[type]:
        return find_class(self.namespace, name)

    def _instantiate_trainer(self, config: Dict[str, Any], callbacks: List[Any]) -> Any:
        if self.job.in_container:
            add_environment(config, self.topology, self.namespace)
        if self.subcommand in (None, "fit"):
            present = [*as_list(config.get("callbacks")), *callbacks, *as_list(self.trainer_defaults.get("callbacks"))]
            own = own_callbacks(
                config,
                present,
                job=self.job,
                namespace=self.namespace,
                options=self._get(self.config_init, "sagemaker"),
                settings=self.sagemaker_settings,
                config=self._config_yaml(),
            )
            callbacks = [*callbacks, *own]
        return super()._instantiate_trainer(config, callbacks)

    def _config_yaml(self) -> str:
        config = self.config.get(str(self.subcommand), self.config)
        return str(self._parser(self.subcommand).dump(config, skip_none=False))


def _without_typed(arguments: JobArguments) -> Dict[str, Any]:
    """Config files and hyperparameters as one config."""
    settings = Settings.collect(arguments.configs, arguments.hyperparameters, (), arguments.subcommand)
    merged: Dict[str, Any] = as_config(settings.tree)
    return merged


def _config_words(folder: str, name: str, content: Any) -> Iterator[str]:
    if content:
        path = os.path.join(folder, name)
        with open(path, "w", encoding="utf-8") as file:
            json.dump(content, file)
        yield from ("--config", path)


def _deep_merge(under: Dict[str, Any], over: Dict[str, Any]) -> Dict[str, Any]:
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = _deep_merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged
