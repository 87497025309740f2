"""Parses config files, hyperparameters, the command line and routed settings into the config of a run in a job."""

import glob
import os
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from typing import Any, Callable, ContextManager, Dict, Iterator, Mapping, Optional, Sequence, Tuple

from lightning_sm._config.arguments import SUBCOMMANDS, JobArguments, Part, nest
from lightning_sm._config.classes import closest_keys, import_class, init_parameters, known_keys, takes_text_only
from lightning_sm._config.directories import Consumer
from lightning_sm._config.flat_names import flat_keys
from lightning_sm._config.options import SageMakerOptions
from lightning_sm._config.reader import CommandLine, apply_config, is_same, keep_text, set_entry
from lightning_sm._config.routed import Link, Routing
from lightning_sm._config.routing import build_routing
from lightning_sm._config.settings import Layer, Provenance, RunContext, Settings, as_config, plain_key
from lightning_sm._config.strategies import (
    check_strategy,
    expand_strategy,
    sets_argument,
    shortened,
    strategy_hint,
    with_strategy_class,
)
from lightning_sm._lightning.legacy import parse_args
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import HyperparameterError, RoutingError

__all__ = ["GroupClass", "RunParser", "find_model_class", "options_from", "raise_refusals", "trains"]


_CONFIG_PREFIX = 'Parser key "config": '


@dataclass(frozen=True)
class GroupClass:
    """The class of a group of settings.

    Args:
        cls: The class that the project's CLI is made with; ``None`` where the config must name it.
        is_named: Whether the config names the class, whose arguments then stand below ``init_args``.
    """

    cls: Any = None
    is_named: bool = False


class RunParser:
    """Parses what a run was given, together with the settings that SageMaker determines.

    Args:
        context: The run.
        parser: The CLI's parser.
        subparser: The parser of the subcommand; the same one where there are no subcommands.
        arguments: What the run was given.
        classes: The class of each of the groups ``trainer``, ``data`` and ``model``.

    Attributes:
        context: The run with its settings and options, once they have been read.
        routing: The settings that SageMaker determines.
    """

    def __init__(
        self,
        context: RunContext,
        parser: Any,
        subparser: Any,
        arguments: JobArguments,
        classes: Mapping[str, GroupClass],
    ) -> None:
        self.context = context
        self.routing = Routing()
        self._parser, self._subparser = parser, subparser
        self._classes = classes
        self._project = self._project_defaults()
        self._files = tuple(_default_configs(parser, subparser))
        self._written = arguments.as_written(self._project, self._files)
        self._flat = self._flat_keys(arguments)
        self._arguments = arguments.with_keys(self._flat)
        self._written = self._arguments.as_written(self._project, self._files)
        self._parts = with_strategy_class(context.namespace, self._arguments.parts())

    def parse_args(self) -> Any:
        """Parse the command line, hyperparameters and routed settings.

        Raises:
            HyperparameterError: The parser refused something.
            RoutingError: See :func:`~lightning_sm._config.routing.build_routing`.
        """
        options_from(self._written)  # its error is clearer than the parser's where a channel is mapped to no parameter
        # In the middle of a line it would print what was read up to there.
        prints = [word for part in self._parts for word in part.words if _is_print(word)]
        parts = [part for part in self._parts if not set(prints) & set(part.words)]
        with self._refusals():
            self._route(self._read(parts))
            words = self._line(parts).words(self._apply_routing)
            config = parse_args(self.context.namespace, self._parser, [*words, *prints])
        for name, text in self._arguments.strings.items():
            if takes_text_only(self._annotation(name)):
                keep_text(config.get(self._arguments.subcommand, config), name, text)
        return config

    def parse_mapping(self, given: Mapping[str, Any]) -> Any:
        """Parse a mapping that a program passes, as :meth:`parse_args` does; it counts as typed."""
        layer = nest(given), Provenance(Layer.COMMAND_LINE)
        self._written = self._written.with_layer(*layer)
        subcommand = self._arguments.subcommand
        with self._refusals():
            self._route(self._read(self._parts).with_layer(*layer))
            tree = {name: value for name, value in self.context.settings.tree.items() if name != "config"}
            config = as_config(Settings(tree).with_layer(self.routing.as_config(), layer[1]).tree)
            return self._parser.parse_object(
                config if subcommand is None else {"subcommand": subcommand, subcommand: config}
            )

    def _read(self, parts: Sequence[Part]) -> Settings:
        """Read what was given, without defaults of classes and without routed settings."""

        def parse(words: Sequence[str]) -> Any:
            return parse_args(self.context.namespace, self._parser, words, defaults=False)

        always = [Part.of_file(path) for path in self._files]
        variables = [Part(Provenance(Layer.VARIABLE))] if always else []  # they are above these files
        return self._line([*always, *variables, *parts]).read(parse, tuple(self._project))

    def _line(self, parts: Sequence[Part]) -> CommandLine:
        def expand(values: Any) -> None:
            expand_strategy(self.context.namespace, self._subparser, values)

        first = next((part for part in parts if sets_argument(part)), None)
        return CommandLine.of(self._parser, self._subparser, self._arguments.subcommand, parts, expand, first)

    def _route(self, settings: Settings) -> None:
        """Determine the routing and the options from the settings."""
        self.context = replace(self.context, settings=settings, options=options_from(settings))
        check_strategy(self.context)
        self.routing = build_routing(
            self.context,
            consumer=self._consumer(),
            links=_argument_links(self._subparser),
            trains=trains(self._arguments.subcommand),
        )
        named = tuple(
            f"{key} = {settings.get(plain_key(key))} ← hyperparameter {name!r}"
            for name, key in self._flat.items()
            if settings.provenance_of(plain_key(key)) == Provenance(Layer.HYPERPARAMETER)
        )
        self.routing = replace(self.routing, notes=(*named, *self.routing.notes))

    def _apply_routing(self, values: Any) -> None:
        apply_config(self._subparser, values, self.routing.as_config(entries=False))
        for setting in self.routing.settings:
            if setting.is_of_entry:
                set_entry(self._subparser, values, setting.key, setting.value)

    def _consumer(self) -> Optional[Consumer]:
        """The data module, or the model where there is none."""
        for key in ("data", "model"):
            group = self._classes[key]
            path = self.context.settings.class_path(key)
            cls = self.context.find_class(path) if path is not None else group.cls
            if isinstance(cls, type):
                return Consumer(key, cls, f"{cls.__module__}.{cls.__qualname__}" if group.is_named else None)
        return None

    def _flat_keys(self, arguments: JobArguments) -> Dict[str, str]:
        """The keys of hyperparameters whose names are no keys. The parser sets the target of a link by itself."""
        if not arguments.named:
            return {}
        targets = {plain_key(link.target) for link in _argument_links(self._subparser)}
        known = known_keys(self._subparser, self._written.tree, self.context.find_class)
        chosen = options_from(self._written).hyperparameters
        return flat_keys(arguments.named, {key for key in map(plain_key, known) if key not in targets}, chosen)

    def _annotation(self, name: str) -> Any:
        for action in self._subparser._actions:
            if action.dest == name:
                return getattr(action, "_typehint", None) or action.type
        group, _, parameter = plain_key(name).rpartition(".")
        path = self._written.class_path(group) if group else None
        fixed = self._classes[group].cls if group in self._classes else None
        cls = self.context.find_class(path) if path is not None else fixed
        found = init_parameters(cls).get(parameter) if isinstance(cls, type) else None
        return found.annotation if found is not None else None

    def _refusals(self) -> ContextManager[None]:
        parsers = [self._parser] if self._subparser is self._parser else [self._parser, self._subparser]

        def hint(problem: str) -> Optional[str]:
            fed = {key: source for key, source in self.routing.sources.items() if not key.startswith("trainer.")}
            given = {**fed, **self._written.provenance}
            closest = closest_keys(self._subparser, self._written.tree, given, self.context.find_class)
            hints = (closest, _ignored_names(self._subparser, self._written))
            strategy = strategy_hint(self.context, problem, self._written)
            return strategy or " ".join(hint for hint in hints if hint) or self.routing.refused_channel(problem)

        return raise_refusals(parsers, hint)

    def _project_defaults(self) -> Dict[str, Any]:
        """The defaults that the project set (``trainer_defaults``, ``parser.set_defaults``) and the class has not."""
        found: Dict[str, Any] = {}
        for key, value in self._subparser._defaults.items():
            group, _, name = key.partition(".")
            cls = self._classes[group].cls if group in self._classes else None
            parameter = init_parameters(cls).get(name) if isinstance(cls, type) else None
            if parameter is not None and value is not None and not is_same(value, parameter.default):
                found[key] = value.as_dict() if hasattr(value, "as_dict") else value
        return found


def trains(subcommand: Optional[str]) -> bool:
    """Whether a subcommand trains: Lightning's ``fit``, and a project's own, which may call it."""
    return subcommand not in ("validate", "test", "predict", "tune")


def options_from(settings: Settings) -> SageMakerOptions:
    """Return the ``sagemaker`` group as it was set.

    Raises:
        RoutingError: ``sagemaker.channels`` is no mapping of names.
        HyperparameterError: ``sagemaker.hyperparameters`` is none.
    """
    given = settings.get("sagemaker")
    known = {option.name for option in fields(SageMakerOptions)}
    # The parser refuses unknown names.
    values: Mapping[str, Any] = given if isinstance(given, Mapping) else {}
    options = SageMakerOptions(**{name: value for name, value in values.items() if name in known and value is not None})
    channels = options.channels
    if not isinstance(channels, Mapping) or not all(isinstance(key, str) for key in channels.values()):
        raise RoutingError(
            f"sagemaker.channels is {channels!r}.", hint="Map channels to parameters, as in {training: data.data_dir}."
        )
    names = options.hyperparameters
    if not isinstance(names, Mapping) or not all(isinstance(key, str) for key in names.values()):
        raise HyperparameterError(
            f"sagemaker.hyperparameters is {names!r}.", hint="Map their names to keys, as in {lr: model.lr}."
        )
    return options


def find_model_class(words: Sequence[str], job: TrainingJob) -> Optional[type]:
    """Import the class that a run names as its model, before a CLI is made; ``None`` where there is no such class.

    Faulty settings are ignored here: the parser's own errors are clearer.

    Args:
        words: The command line without the program's name.
        job: The job.
    """
    try:
        name = JobArguments.read(words, job, SUBCOMMANDS).as_written().class_path("model")
    except HyperparameterError:
        return None
    return import_class(name) if name is not None and "." in name else None


@contextmanager
def raise_refusals(parsers: Sequence[Any], hint: Callable[[str], Optional[str]]) -> Iterator[None]:
    """Raise an error, which reaches the job's failure reason, where argparse would exit.

    An abbreviated key is refused, too, because its provenance could not be looked up by its name.

    Args:
        parsers: The parser and those of its subcommands that are in use.
        hint: Finds what to do about the parser's problem.

    Raises:
        HyperparameterError: The parser refused something.
    """

    def refuse(message: object, *_: Any, **__: Any) -> None:
        # An error in a config is reported for the config, and again for the argument that it is the value of.
        problem = " ".join(str(message).split()).partition(" HINT: ")[0]
        while problem.startswith(_CONFIG_PREFIX):
            problem = problem[len(_CONFIG_PREFIX) :]
        raise HyperparameterError(
            shortened(problem), hint=hint(problem) or "Run the same command with --help to see every key."
        )

    allowed = [parser.allow_abbrev for parser in parsers]
    for parser in parsers:
        parser.error, parser.allow_abbrev = refuse, False
    try:
        yield
    finally:
        for parser, was_allowed in zip(parsers, allowed):
            del parser.error
            parser.allow_abbrev = was_allowed


def _is_print(word: str) -> bool:
    """Whether a word asks for the config or for the help of a class, as in ``--trainer.strategy.help=FSDPStrategy``."""
    flag, equals, _ = word.partition("=")
    return flag == "--print_config" or bool(equals and flag.startswith("--") and flag.endswith(".help"))


def _ignored_names(parser: Any, settings: Settings) -> Optional[str]:
    """Return a hint where hyperparameters without a dot are no keys, which a script may read by itself."""
    known = {str(action.dest).partition(".")[0] for action in parser._actions}
    given = [key for key, source in settings.provenance.items() if source.layer is Layer.HYPERPARAMETER]
    plain = [name for name in given if name not in known and "." not in name]
    return (
        f"A hyperparameter that the script itself reads belongs into ignore_hyperparameters={plain}." if plain else None
    )


def _argument_links(parser: Any) -> Tuple[Link, ...]:
    """What ``parser.link_arguments`` links: the parser sets the target, whatever else is given for it."""
    group = getattr(parser, "_links_group", None)
    return tuple(
        Link(
            action.target[0],
            tuple(key for key, _ in action.source),
            action.compute_fn is None and action.apply_on == "parse" and len(action.source) == 1,
            next((each.default for each in parser._actions if each.dest == action.source[0][0]), None),
        )
        for action in (() if group is None else group._group_actions)
    )


def _default_configs(*parsers: Any) -> Iterator[str]:
    """The files of ``parser_kwargs={"fit": {"default_config_files": […]}}`` that are there, in their order."""
    for parser in parsers:
        for pattern in getattr(parser, "default_config_files", None) or []:
            yield from sorted(glob.glob(os.path.expanduser(str(pattern))))
