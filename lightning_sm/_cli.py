"""What ``SageMakerCLI`` adds to Lightning's CLI, in either namespace."""

import inspect
import sys
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any, Collection, ContextManager, Dict, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._config.arguments import JobArguments
from lightning_sm._config.channels import Consumer
from lightning_sm._config.classes import find_class, options_from
from lightning_sm._config.command_line import CommandLine, config_words, deep_merge, refusing
from lightning_sm._config.config_files import as_config, config_text
from lightning_sm._config.given import MARK, add_marks, read_given, set_entry
from lightning_sm._config.options import SageMakerOptions
from lightning_sm._config.project_defaults import argument_links, default_configs, project_defaults
from lightning_sm._config.routed import Routing
from lightning_sm._config.routing import build_routing
from lightning_sm._config.settings import Settings
from lightning_sm._config.signatures import init_parameters, takes_text_only
from lightning_sm._config.suggest import closest_keys, own_names
from lightning_sm._failure import failure_reported, read_job
from lightning_sm._lightning import Namespace
from lightning_sm._lightning.compat import (
    add_any_data_module,
    configs_must_be_whole,
    parse_words,
    save_config_arguments,
)
from lightning_sm._logging import log
from lightning_sm._sagemaker.topology import Launcher, Topology
from lightning_sm._trainer_defaults import add_environment, as_list, own_callbacks, stay_on_one_host

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
        ignore_hyperparameters: Names of hyperparameters that the script reads by itself, such as those of its own
            ``argparse``, and that are none of this CLI's settings.
        **kwargs: What ``LightningCLI`` takes. In a container the saved config may overwrite an older one unless
            ``save_config_kwargs`` says otherwise, because a restarted job finds its own.

    Raises:
        JobConfigError: A file or variable of the job is broken.
        TopologyError: The launcher's numbers do not make a world.
        HyperparameterError: An argument of a job cannot be used; the job's failure reason says which.
        RoutingError: It is open which parameter a channel feeds, or the channel holds no files to read.
    """

    namespace: Namespace

    def __init__(self, *args: Any, ignore_hyperparameters: Collection[str] = (), **kwargs: Any) -> None:
        self._ignored = (ignore_hyperparameters,) if isinstance(ignore_hyperparameters, str) else ignore_hyperparameters
        self.job = read_job()
        with failure_reported(self.job):
            self.topology = Topology.resolve(job=self.job)
        self.routing = Routing()
        self.sagemaker_settings = Settings()
        if self.job.in_container:
            args, kwargs = _by_name(super().__init__, args, kwargs)
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

    def add_core_arguments_to_parser(self, parser: Any) -> None:
        """Add trainer, model and data."""
        super().add_core_arguments_to_parser(parser)
        add_any_data_module(self.namespace, parser)

    def parse_arguments(self, parser: Any, *args: Any) -> None:
        """Parse the command line; in a job, together with hyperparameters and what SageMaker decides."""
        if not self._is_active:
            super().parse_arguments(parser, *args)
            self._fill_options()
            return
        given = args[0] if args and args[0] is not None else sys.argv[1:]
        with failure_reported(self.job):
            if not isinstance(given, dict) and not hasattr(given, "as_dict"):
                parsed = self._parse_words(parser, given)
            else:
                parsed = self._parse_object(parser, given if isinstance(given, dict) else given.as_dict())
        if not parsed:
            with failure_reported(self.job), refusing([parser], lambda _: None):
                super().parse_arguments(parser, *args)
        self._fill_options()
        if parsed and self.routing and self.topology.is_rank_zero:
            log.info("%s", self.routing.table())

    def _fill_options(self) -> None:
        """Let an empty group (``sagemaker:`` and nothing below it) mean that nothing is set."""
        subcommand = self.config.get("subcommand")
        config = self.config if subcommand is None else self.config[subcommand]
        if config.get("sagemaker", "") is None:
            config["sagemaker"] = type(config)(**asdict(SageMakerOptions()))

    def _parse_words(self, parser: Any, words: Sequence[str]) -> bool:
        arguments = JobArguments.read(words, self.job, self._subcommands, self._ignored)
        if arguments.subcommand is None and self._subcommands:
            return False
        subparser = self._subparser(parser, arguments)
        files = list(default_configs(parser, subparser))
        said, project = self._said(subparser, arguments, files)
        self.sagemaker_settings = said
        options_from(said)  # has the better words where a channel is mapped to no parameter
        arguments = arguments.with_texts(self._only_text(subparser, arguments, said))
        # Asked for in the middle of a line, it prints what was read up to there.
        prints = [word for word in arguments.typed if word.partition("=")[0] == "--print_config"]
        arguments = replace(arguments, typed=tuple(word for word in arguments.typed if word not in prints))
        with self._refusing(parser, arguments):
            whole = configs_must_be_whole(self.namespace)
            line = CommandLine.of(arguments, always=files, whole=whole)
            line.read_sections_with(subparser, arguments.subcommand)

            def parse(words: Sequence[str]) -> Any:
                return parse_words(self.namespace, parser, words, defaults=False)

            settings = read_given(parse, subparser, line.front, line.layers, said, project)
            self._decide(subparser, settings, arguments.subcommand)
            routed = self.routing.as_config(entries=False)
            line = CommandLine.of(arguments, whole=whole, routed=routed)
            line.read_sections_with(subparser, arguments.subcommand)
            add_marks(subparser)["routed"] = lambda values: self._set_entries(subparser, values)
            words = [*line.words, *(() if whole else config_words(routed)), f"{MARK}=routed", *prints]
            self.config = parse_words(self.namespace, parser, words)
        return True

    def _parse_object(self, parser: Any, values: Dict[str, Any]) -> bool:
        """Parse what a program hands over as a mapping, which counts as typed."""
        subcommand = values.get("subcommand")
        words = [] if subcommand is None else [subcommand]
        arguments = JobArguments.read(words, self.job, self._subcommands, self._ignored)
        subcommand = arguments.subcommand
        if subcommand is None and self._subcommands:
            return False
        given = values.get(subcommand, {}) if subcommand is not None else values
        subparser = self._subparser(parser, arguments)
        settings, _ = self._said(subparser, arguments, list(default_configs(parser, subparser)), given)
        self._decide(subparser, settings, subcommand)
        config = deep_merge(as_config(self.sagemaker_settings.tree), self.routing.as_config())
        with self._refusing(parser, arguments):
            self.config = parser.parse_object(
                config if subcommand is None else {"subcommand": subcommand, subcommand: config}
            )
        return True

    def _parse_ckpt_path(self) -> None:
        """Take the model's hyperparameters from the checkpoint of ``ckpt_path``, as Lightning does since 2.5.5."""
        parent: Any = super()
        if not self._is_active:
            parent._parse_ckpt_path()
            return
        hint = "Name a checkpoint of this model as ckpt_path, or the model's class that the checkpoint was made with."
        subparser = self._parser(self.config.get("subcommand"))
        parsers = [self.parser] if subparser is self.parser else [self.parser, subparser]
        with failure_reported(self.job), refusing(parsers, lambda _: hint):
            parent._parse_ckpt_path()

    @property
    def _subcommands(self) -> Dict[str, Any]:
        return dict(self.subcommands()) if hasattr(self, "_subcommand_method_arguments") else {}

    def _subparser(self, parser: Any, arguments: JobArguments) -> Any:
        return parser if arguments.subcommand is None else self._parser(arguments.subcommand)

    def _refusing(self, parser: Any, arguments: JobArguments) -> ContextManager[None]:
        subparser = self._subparser(parser, arguments)
        parsers = [parser] if subparser is parser else [parser, subparser]
        said = self.sagemaker_settings

        def hint(problem: str) -> Optional[str]:
            fed = {key: source for key, source in self.routing.origins.items() if not key.startswith("trainer.")}
            settings = replace(said, origins={**fed, **said.origins})
            hints = (closest_keys(subparser, settings, self._find_class), own_names(subparser, said))
            return " ".join(hint for hint in hints if hint) or self.routing.refused_channel(problem)

        return refusing(parsers, hint)

    def _said(
        self,
        subparser: Any,
        arguments: JobArguments,
        files: Sequence[str],
        given: Optional[Mapping[str, Any]] = None,
    ) -> Tuple[Settings, Dict[str, Any]]:
        """Gather what was said, without a parser, and the project's own defaults."""
        classes = {"trainer": self.trainer_class, "model": self.model_class, "data": self.datamodule_class}
        project = project_defaults(subparser, classes)
        settings = Settings.collect(
            [*files, *arguments.configs],
            arguments.hyperparameters,
            arguments.typed,
            arguments.subcommand,
            defaults=project,
            given=given,
            listed=arguments.listed,
        )
        return settings, project

    def _decide(self, subparser: Any, settings: Settings, subcommand: Optional[str]) -> None:
        """Decide what is left."""
        self.sagemaker_settings = settings
        self.routing = build_routing(
            self.job,
            self.topology,
            settings,
            options=options_from(settings),
            consumer=self._consumer(settings),
            find_class=self._find_class,
            namespace=self.namespace.name,
            links=argument_links(subparser),
            trains=self._may_fit(subcommand),
        )

    def _set_entries(self, subparser: Any, values: Any) -> None:
        for setting in self.routing.settings:
            if setting.is_of_entry:
                set_entry(subparser, values, setting.key, setting.value)

    def _only_text(self, subparser: Any, arguments: JobArguments, said: Settings) -> List[str]:
        """The numbers among the hyperparameters that can only mean their text, as the same word on the line would."""
        return [name for name in arguments.texts if takes_text_only(self._annotation(subparser, name, said))]

    def _annotation(self, subparser: Any, name: str, said: Settings) -> Any:
        for action in subparser._actions:
            if action.dest == name:
                return getattr(action, "_typehint", None) or action.type
        group, _, parameter = name.replace(".init_args", "").rpartition(".")
        named = said.get(group) if group else None
        path = named if isinstance(named, str) else said.get(f"{group}.class_path")
        fixed = {"model": self.model_class, "data": self.datamodule_class}.get(group)
        cls = self._find_class(path) if isinstance(path, str) else fixed
        found = init_parameters(cls).get(parameter) if isinstance(cls, type) else None
        return found.annotation if found is not None else None

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
        stay_on_one_host(config, self.topology, self.namespace)
        if self._may_fit(self.subcommand):
            if config.get("callbacks") is not None:
                config["callbacks"] = as_list(config["callbacks"])  # Lightning 1.5 would extend it as it stands
            present = [*as_list(config.get("callbacks")), *callbacks, *as_list(self.trainer_defaults.get("callbacks"))]
            own = own_callbacks(
                config,
                present,
                job=self.job,
                topology=self.topology,
                namespace=self.namespace,
                options=self._get(self.config_init, "sagemaker"),
                settings=self.sagemaker_settings,
                config=self._config_yaml(),
                portable_config=self._portable_config(),
            )
            callbacks = [*callbacks, *own]
        return super()._instantiate_trainer(config, callbacks)

    @staticmethod
    def _may_fit(subcommand: Optional[str]) -> bool:
        """Whether a subcommand trains: Lightning's ``fit``, and a project's own, which may call it."""
        return subcommand not in ("validate", "test", "predict", "tune")

    def _config_yaml(self) -> str:
        config = self.config.get(str(self.subcommand), self.config)
        return str(self._parser(self.subcommand).dump(config, skip_none=False))

    def _portable_config(self) -> Optional[str]:
        """The config without what SageMaker decided, which can be run elsewhere; ``None`` where nothing was decided."""
        import yaml

        if not self.routing.settings:
            return None
        return config_text(self.routing.undone(yaml.safe_load(self._config_yaml()), self.sagemaker_settings))


def _by_name(function: Any, args: Tuple[Any, ...], kwargs: Dict[str, Any]) -> Tuple[Tuple[Any, ...], Dict[str, Any]]:
    """Turn positional arguments into named ones, except where Python has to say what is wrong with them."""
    parameters = inspect.signature(function).parameters.values()
    names = [parameter.name for parameter in parameters if parameter.kind is parameter.POSITIONAL_OR_KEYWORD]
    if len(args) > len(names) or set(names[: len(args)]) & set(kwargs):
        return args, kwargs
    return (), {**dict(zip(names, args)), **kwargs}
