"""Parses the line of a run in a job: once to look at what was given, and once together with SageMaker's settings."""

import argparse
import contextvars
import glob
import os
import re
from contextlib import contextmanager, suppress
from dataclasses import replace
from functools import partial
from typing import Any, Callable, Collection, ContextManager, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._lightning.legacy import parse_args
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._settings.channels import Consumer
from lightning_sm._settings.classes import (
    STRATEGY,
    closest_keys,
    import_class,
    init_parameters,
    known_keys,
    takes_text_only,
)
from lightning_sm._settings.flat_names import flat_keys
from lightning_sm._settings.given import Given, RunContext, as_list, as_tree
from lightning_sm._settings.line import (
    HYPERPARAMETER,
    SUBCOMMANDS,
    JobLine,
    Part,
    config_text,
    leaves,
    plain_key,
    read_word,
    section,
)
from lightning_sm._settings.options import options_of
from lightning_sm._settings.redirect import CALLBACKS, LOGGER, redirect
from lightning_sm._settings.routed import Routing
from lightning_sm._settings.routing import Link, build_routing
from lightning_sm._settings.strategies import check_strategy, expanded_strategy, shortened, strategy_hint
from lightning_sm.errors import HyperparameterError

__all__ = ["RunParser", "find_model_class", "raise_refusals", "trains"]

_CONFIG_PREFIX = 'Parser key "config": '
_CALL = "--lightning-sm-call"


class RunParser:
    """Parses what a run was given, together with the settings that SageMaker determines.

    The parser reads the line twice. A hidden option on it calls back: at its end, before the parser checks for missing
    arguments and applies links, and where a file's section or a strategy's name needs help.

    Args:
        context: The run.
        parser: The CLI's parser.
        subparser: The parser of the subcommand; the same one where there are no subcommands.
        line: What the run was given.
        classes: For ``data`` and ``model`` the class that the project's CLI is made with, if any, and whether the
            config names the class, whose arguments then stand below ``init_args``.

    Attributes:
        context: The run with what it was given and its options, once they have been read.
        routing: The settings that SageMaker determines.
    """

    def __init__(
        self, context: RunContext, parser: Any, subparser: Any, line: JobLine, classes: Mapping[str, Tuple[Any, bool]]
    ) -> None:
        self.context = context
        self.routing = Routing()
        self._parser, self._subparser, self._line, self._classes = parser, subparser, line, classes
        below = (*_default_configs(line.subcommand, parser, subparser), *_variables(subparser, line.subcommand))
        self._keys = self._flat_keys((*below, *line.parts()))
        self._parts = line.parts(self._keys)
        self._written = (*below, *self._parts)

    def parse(self) -> Any:
        """Parse the command line, hyperparameters and routed settings.

        Raises:
            HyperparameterError: The parser refused something.
            RoutingError: See :func:`~lightning_sm._settings.routing.build_routing`.
        """
        # In the middle of a line they would print what was read up to there.
        prints = [part for part in self._parts if part.args and _is_print(part.args[0])]
        args = self._args([part for part in self._parts if part not in prints])
        with self._refusals():
            self._route(self._look(args))
            args += [*self.routing.args, self._call("redirect", self._redirect)]
            args += [arg for part in prints for arg in part.args]
            config = parse_args(self.context.namespace, self._parser, args)
        for name in self._line.strings:
            self._restore(config.get(self._line.subcommand, config), self._keys.get(name, name), self._line.named[name])
        return config

    def _args(self, parts: Sequence[Part]) -> List[str]:
        args = [] if self._line.subcommand is None else [self._line.subcommand]
        for number, part in enumerate(parts):
            in_section = section(part.file, self._line.subcommand)
            if any(key.startswith(f"{STRATEGY}.") for key in part.values) and part.path is None:
                args.append(self._call("arguments", lambda values: self._name_strategy(values, has_arguments=True)))
            if in_section is not None:
                args.append(self._call(f"section-{number}", partial(self._section, part, in_section)))
            elif part.content is not None and (not part.args or self._nargs(part.content[0]) == 0):
                args.append(self._call(f"hyperparameter-{number}", partial(self._hyperparameter, *part.content)))
            else:
                args += part.args
        return [*args, self._call("strategy", self._name_strategy)]

    def _call(self, name: str, function: Callable[[Any], None]) -> str:
        """The argument at which the parser calls a function with the values that it has read so far."""
        if _CALL not in self._subparser._option_string_actions:
            self._subparser.add_argument(_CALL, action=_Calls)
        self._subparser._option_string_actions[_CALL].calls[name] = function
        return f"{_CALL}={name}"

    def _look(self, args: Sequence[str]) -> Dict[str, Any]:
        """What the parser has read at the end of the line."""
        seen: List[Dict[str, Any]] = []

        def end(values: Any) -> None:
            seen.append(as_tree(values.clone()))
            raise _EndOfLineError

        # A copy, because the parser resets its context variables only where it returns.
        with suppress(_EndOfLineError):
            line = [*args, self._call("look", end)]
            contextvars.copy_context().run(parse_args, self.context.namespace, self._parser, line)
        return seen[0]

    def _apply(self, values: Any, content: Mapping[str, Any]) -> None:
        """Set nested values among those of the parser, as a config would."""
        self._subparser._option_string_actions["--config"](self._subparser, values, config_text(content), "--config")

    def _section(self, part: Part, content: Mapping[str, Any], values: Any) -> None:
        """Read a subcommand's section of a config file, which LightningCLI would want before the subcommand."""
        from jsonargparse.typing import Path_fr

        actions = self._parser._actions
        sections = next(action.choices for action in actions if isinstance(action, argparse._SubParsersAction))
        beside = sorted(str(key) for key in part.file if key not in sections and key != "subcommand")
        if beside:
            raise HyperparameterError(
                f"{part.path} has {', '.join(beside)} beside its section {self._line.subcommand!r}.",
                hint="Put all settings into sections, or none.",
            )
        with Path_fr(part.path).relative_path_context():
            self._apply(values, content)

    def _hyperparameter(self, key: str, value: Any, written: Any, values: Any) -> None:
        """Set a hyperparameter by a config, or in a mapping of the user's, which a config would replace."""
        holder, in_mapping = _holder(values, key)
        if in_mapping:
            holder[_last(key)] = value
            return
        content, nargs = value if holder is None else written, self._nargs(key)
        if nargs == 0:
            content = read_word(str(value))
        elif nargs and isinstance(value, list):
            content = value
        for name in reversed(key.split(".")):
            content = {name: content}
        self._apply(values, content)

    def _nargs(self, key: str) -> Any:
        """How many words an option takes, by argparse: 0 for a switch (``store_true``), ``+`` or ``*`` for a list."""
        return getattr(self._subparser._option_string_actions.get(f"--{key}"), "nargs", None)

    def _name_strategy(self, values: Any, has_arguments: bool = False) -> None:
        """Replace the name of a strategy by its class, where the parser does not know it or arguments of it follow."""
        found = expanded_strategy(self.context.namespace, values.get(STRATEGY), has_arguments)
        if found is not None:
            self._apply(values, {"trainer": {"strategy": found}})

    def _redirect(self, values: Any) -> None:
        """Set where loggers and callbacks write, of which no argument can name one of several."""
        for key in (LOGGER, CALLBACKS) if self.context.job.in_container else ():
            if any(isinstance(entry, dict) for entry in as_list(values.get(key))):  # of the project's defaults
                flag = f"--{key}"
                self._subparser._option_string_actions[flag](self._subparser, values, values[key], flag)
            settings = (*self.routing.settings, *redirect(values.get(key), key, self.context))
            self.routing = replace(self.routing, settings=settings)

    def _route(self, values: Mapping[str, Any]) -> None:
        """Determine the options and the routing from what was given."""
        given = Given(values, self._written)
        _check_groups(given)
        options = {name: value for name, value in (values.get("sagemaker") or {}).items() if value is not None}
        self.context = replace(self.context, given=given, options=options_of(options))
        check_strategy(self.context)
        self.routing = build_routing(
            self.context,
            consumer=self._consumer(),
            links=_argument_links(self._subparser),
            trains=trains(self._line.subcommand),
        )
        named = tuple(
            f"{key} = {given.get(plain_key(key))} ← hyperparameter {name!r}"
            for name, key in self._keys.items()
            if given.source_of(plain_key(key)) == HYPERPARAMETER
        )
        self.routing = replace(self.routing, notes=(*named, *self.routing.notes))

    def _consumer(self) -> Optional[Consumer]:
        """The data module, or the model where there is none."""
        for key in ("data", "model"):
            cls, is_named = self._classes[key]
            path = self.context.given.class_path(key)
            cls = cls if path is None else self.context.find_class(path)
            if isinstance(cls, type):
                return Consumer(key, cls, is_named)
        return None

    def _flat_keys(self, written: Sequence[Part]) -> Dict[str, str]:
        """The keys of hyperparameters whose names are no keys. The parser sets the target of a link by itself."""
        if not self._line.named:
            return {}
        targets = {plain_key(link.target) for link in _argument_links(self._subparser)}
        values = {key: value for part in written for key, value in part.values.items()}
        known = {plain_key(key) for key in known_keys(self._subparser, values, self.context.find_class)}
        option = "sagemaker.hyperparameters."
        chosen = {
            key[len(option) :]: value
            for key, value in values.items()
            if key.startswith(option) and isinstance(value, str)
        }
        return flat_keys(self._line.named, known - targets, chosen)

    def _restore(self, values: Any, key: str, text: str) -> None:
        """Set a text again where a parser has read nothing in it, as in ``null`` for an ``Optional[str]``."""
        (holder, _), last = _holder(values, key), _last(key)
        is_nothing = holder is not None and last in holder and holder[last] is None
        if text and is_nothing and takes_text_only(self._annotation(key)):
            holder[last] = text

    def _annotation(self, key: str) -> Any:
        for action in self._subparser._actions:
            if action.dest == key:
                return getattr(action, "_typehint", None) or action.type
        group, _, parameter = plain_key(key).rpartition(".")
        path = self.context.given.class_path(group)
        cls = self.context.find_class(path) if path is not None else None
        found = None if cls is None else init_parameters(cls).get(parameter)
        return None if found is None else found.annotation

    def _refusals(self) -> ContextManager[None]:
        def hint(problem: str) -> Optional[str]:
            fed = [(key, source) for key, source in self.routing.sources.items() if not key.startswith("trainer.")]
            given = [(key, part.source) for part in self._written for key in part.values]
            values = {key: value for part in self._written for key, value in part.values.items()}
            closest = closest_keys(self._subparser, values, dict([*fed, *given]), self.context.find_class)
            hints = (closest, strategy_hint(problem), _ignored_names(self._subparser, self._written))
            return " ".join(hint for hint in hints if hint) or self.routing.refused_channel(problem)

        return raise_refusals({self._parser, self._subparser}, hint)


class _Calls(argparse.Action):
    """Calls ``calls[name](values so far)`` when the parser comes to ``--lightning-sm-call=name``."""

    def __init__(self, option_strings: Sequence[str], **_: Any) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, help=argparse.SUPPRESS)
        self.calls: Dict[str, Callable[[Any], None]] = {}

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Optional[str] = None) -> None:
        self.calls[values](namespace)


class _EndOfLineError(Exception):
    """Leaves the parser before it checks for missing arguments and applies links."""


def _last(key: str) -> str:
    return key.rpartition(".")[2]


def _holder(values: Any, key: str) -> Tuple[Any, bool]:
    """What holds the last part of a key, if anything does, and whether that is in a mapping of the user's."""
    node, in_mapping = values, False
    for name in plain_key(key).split(".")[:-1]:
        node = node.get(name)
        if not hasattr(node, "get"):
            return None, False
        in_mapping = in_mapping or isinstance(node, dict)
        node = node.get("init_args") or node  # the arguments of a class that is named
    return node, in_mapping


def _check_groups(given: Given) -> None:
    """Refuse what is no group of keys, which SageMaker's settings would replace. Saved configs have ``data: null``."""
    for group in ("data", "model", "sagemaker", "trainer"):
        value = given.values.get(group, {})
        if isinstance(value, (bool, int, float, list)) or (value is None and group == "trainer"):
            written = "null" if value is None else repr(value)[:100]
            raise HyperparameterError(
                f"{given.source_of(group) or 'The project'} sets {group} to {written}, which takes keys with values.",
                hint=f"Write '{group}: {{KEY: VALUE}}', or below '{group}:' lines of KEY: VALUE without '- '.",
            )


def trains(subcommand: Optional[str]) -> bool:
    """Whether a subcommand trains: Lightning's ``fit``, and a project's own, which may call it."""
    return subcommand not in ("validate", "test", "predict", "tune")


def find_model_class(args: Sequence[str], job: TrainingJob) -> Optional[type]:
    """Import the class that a run names as its model, before a CLI is made; ``None`` where there is no such class.

    Faulty settings are ignored here: the parser's own errors are clearer.

    Args:
        args: The command line without the program's name.
        job: The job.
    """
    name = None
    with suppress(HyperparameterError):
        for part in JobLine.read(args, job, SUBCOMMANDS).parts():
            name = part.values.get("model.class_path", part.values.get("model", name))
    return import_class(name) if isinstance(name, str) and "." in name else None


@contextmanager
def raise_refusals(parsers: Collection[Any], hint: Callable[[str], Optional[str]]) -> Iterator[None]:
    """Raise an error, which reaches the job's failure reason, where argparse would exit.

    An abbreviated key is refused, too, because it could not be looked up by its name.

    Args:
        parsers: The parser and those of its subcommands that are in use.
        hint: Finds what to do about the parser's problem.

    Raises:
        HyperparameterError: The parser refused something.
    """

    def refuse(message: object, *_: Any, **__: Any) -> None:
        # An error in a config is reported for the config, and again for the argument that it is the value of.
        problem = " ".join(str(message).split()).partition(" HINT: ")[0]
        problem = re.sub(rf" {_CALL}=\S+", "", problem)  # behind a typed `--` each option is unrecognized
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


def _is_print(arg: str) -> bool:
    """Whether an argument asks for the config, or for the help of a class, as ``--trainer.strategy.help=X`` does."""
    flag, equals, _ = arg.partition("=")
    return flag == "--print_config" or bool(equals and flag.startswith("--") and flag.endswith(".help"))


def _ignored_names(parser: Any, written: Sequence[Part]) -> Optional[str]:
    """Return a hint where hyperparameters without a dot are no keys, which a script may read by itself."""
    known = {str(action.dest).partition(".")[0] for action in parser._actions}
    given = [key for part in written if part.source == HYPERPARAMETER for key in part.values]
    names = [name for name in given if name not in known and "." not in name]
    return (
        f"A hyperparameter that the script itself reads belongs into ignore_hyperparameters={names}." if names else None
    )


def _argument_links(parser: Any) -> Tuple[Link, ...]:
    """What ``parser.link_arguments`` links: the parser sets the target, whatever else is given for it."""
    group = getattr(parser, "_links_group", None)
    return tuple(
        Link(
            action.target[0],
            tuple(key for key, _ in action.source),
            action.compute_fn is None and action.apply_on == "parse" and len(action.source) == 1,
        )
        for action in (() if group is None else group._group_actions)
    )


def _variables(parser: Any, subcommand: Optional[str]) -> Iterator[Part]:
    """Yield what variables of ``LightningCLI`` set, where the project asks for them."""
    prefix = parser.env_prefix.replace("-", "_") + "_" if isinstance(parser.env_prefix, str) else ""
    for action in parser._actions if parser.default_env else ():
        name = f"{prefix}{action.dest}".replace(".", "__").upper()
        if name in os.environ and action.dest == "config":
            yield Part.of_file(os.environ[name], subcommand)
        elif name in os.environ:
            yield Part(f"the variable {name}", dict(leaves({action.dest: read_word(os.environ[name])})))


def _default_configs(subcommand: Optional[str], *parsers: Any) -> Iterator[Part]:
    """The files of ``parser_kwargs={"fit": {"default_config_files": […]}}`` that are there, in their order."""
    for parser in parsers:
        for pattern in getattr(parser, "default_config_files", None) or []:
            for path in sorted(glob.glob(os.path.expanduser(str(pattern)))):
                yield Part.of_file(path, subcommand)
