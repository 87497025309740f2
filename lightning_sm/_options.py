"""Options of commands by jsonargparse, made of the arguments of a dataclass or a function and of its docstring."""

import argparse
import difflib
import inspect
import json
import re
from typing import Any, Callable, Collection, Dict, List, Mapping, Optional, Sequence, Union

import docstring_parser
import jsonargparse

from lightning_sm.errors import HyperparameterError

__all__ = ["add_options", "as_number", "as_typed", "as_value", "new_parser", "options_of", "parse"]

# What SageMaker's SDKs call a setting, and its option here.
_NAMES_OF_SDKS = {
    "--instance-count": "--instances", "--image-uri": "--image", "--use-spot-instances": "--spot",
    "--inputs": "--channel", "--job-name": "--name", "--checkpoint-s3-uri": "--checkpoints",
}  # fmt: skip
# YAML 1.1 takes 1e-3 for text. Seven and more characters as in 7142e85 are the short name of a commit.
_EXPONENT = re.compile(r"(?![0-9a-f]{7,}$)[-+]?(\d+\.?\d*|\.\d+)[eE][-+]?\d+")


def new_parser(program: str, description: str, **options: Any) -> jsonargparse.ArgumentParser:
    """Return a parser that raises its errors."""
    return jsonargparse.ArgumentParser(
        prog=program, description=description, exit_on_error=False, allow_abbrev=False, **options
    )


def add_options(
    parser: jsonargparse.ArgumentParser,
    target: Callable[..., Any],
    *,
    groups: Optional[Mapping[str, str]] = None,
    prefix: str = "",
    types: Optional[Mapping[str, Any]] = None,
    without: Collection[str] = (),
) -> None:
    """Add an option for each argument of a dataclass or function, by its annotation, default and description.

    One that holds several takes one at a time (``--channel NAME=VALUE``); in a config file it is a list or a mapping.
    An argument without a default is positional.

    Args:
        parser: The parser.
        target: The dataclass or function, whose docstring describes its arguments.
        groups: The titles of groups of the help, by the argument that a group begins with.
        prefix: The key of the config file below which the arguments stand, with a dot.
        types: The types of options whose text is not read by the annotation.
        without: Arguments that are no options.
    """
    texts = {each.arg_name: each.description for each in docstring_parser.parse(str(target.__doc__)).params}
    group: Any = parser
    for name, parameter in inspect.signature(target).parameters.items():
        if name in without:
            continue
        if groups and name in groups:
            group = parser.add_argument_group(groups[name])
        kind, default = (types or {}).get(name, parameter.annotation), parameter.default
        text, flag = str(texts.get(name)).replace("``", "").replace("%", "%%"), f"--{name.replace('_', '-')}"
        if default is parameter.empty:
            group.add_argument(name, type=kind, help=text)
        elif kind is bool:
            group.add_argument(flag, action=jsonargparse.ActionYesNo(no_prefix="no-"), default=default, help=text)
        elif not re.search("List|Tuple|Dict|Mapping", str(kind)):
            group.add_argument(flag, dest=f"{prefix}{name}", type=kind, default=default, help=text)
        else:
            is_mapping = re.search("Dict|Mapping", str(kind)) is not None
            one = "--env" if name == "environment" else flag.rstrip("s")
            several = flag if flag != one else f"{flag}-all"
            group.add_argument(
                several,
                dest=f"{prefix}{name}",
                # Of a Dict jsonargparse would read texts as YAML once more, and to 4.21 no Tuple may be empty.
                type=dict if is_mapping else List[str],
                default={} if is_mapping else [],
                help=argparse.SUPPRESS,
            )
            metavar = "NAME=VALUE" if is_mapping else "TEXT"
            group.add_argument(one, dest=f"typed_{name}", action="append", metavar=metavar, help=text)


def options_of(parser: jsonargparse.ArgumentParser) -> List[str]:
    """Return the options of a parser, such as ``--max-run``."""
    return [option for option in parser._option_string_actions if option.startswith("--")]


def parse(parser: jsonargparse.ArgumentParser, given: Union[Sequence[str], Mapping[str, Any]]) -> Dict[str, Any]:
    """Return what arguments, or the content of a config file, set, with what they leave at its default.

    Raises:
        HyperparameterError: An option is unknown, or a value has another type.
        SystemExit: ``--help`` was asked for.
    """
    try:
        read = parser.parse_object(dict(given)) if isinstance(given, Mapping) else parser.parse_args(list(given))
    except argparse.ArgumentError as error:
        text = " ".join(str(error).split())
        raise HyperparameterError(f"{text}.", hint=_advice(parser, text)) from error
    except UnicodeDecodeError as error:
        raise HyperparameterError(f"A file with settings is not UTF-8: {error}.", hint="Save it as UTF-8.") from error
    for action in parser._actions:
        # A section of the file below which nothing stands, or comments only.
        if action.default in ({}, []) and read[action.dest] is None:
            read[action.dest] = type(action.default)()
    found: Dict[str, Any] = read.as_dict()
    for key in [key for key in found if key.startswith("typed_")]:
        typed, name = found.pop(key), key.partition("_")[2]
        place = found if name in found else found["tuning"]
        if typed is not None:
            is_mapping = isinstance(place[name], dict)
            place[name] = {**place[name], **_pairs(name, typed)} if is_mapping else typed
    return found


def _advice(parser: jsonargparse.ArgumentParser, text: str) -> str:
    # The second of each is jsonargparse 4.21's.
    named = re.search(r"[uU]nrecognized arguments: --([\w-]+)|'([\w.-]+)' is not acc|key \"([\w.-]+)\" to check", text)
    if named is None:
        return f"`{parser.prog} --help` lists all options."
    option = f"--{str(named[named.lastindex or 1]).rpartition('.')[2]}".replace("_", "-")
    meant = _NAMES_OF_SDKS.get(option, option)
    close = difflib.get_close_matches(meant, options_of(parser), 1)
    return f"Did you mean {close[0]}?" if close else f"`{parser.prog} --help` lists all options."


def _pairs(name: str, texts: Sequence[str]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for text in texts:
        key, equals, value = text.partition("=")
        if not equals or not key:
            raise HyperparameterError(f"{text!r} is no NAME=VALUE ({name}).", hint="Write the name, = and the value.")
        found[key] = value if name == "environment" else as_value(value)
    return found


def as_value(text: str) -> Any:
    """Return what is in brackets as jsonargparse reads it, a number as JSON writes it, and any other text as it is.

    The program's parser reads the text. YAML would have changed it: 010 to 8, 12:30 to 750, no to false, 1.10 to 1.1.

    Example::

        >>> as_value("1e-3"), as_value("[1e-3, 2024-01-01]"), as_value("{epoch}")
        (0.001, [0.001, '2024-01-01'], '{epoch}')
    """
    if text[:1] in ("[", "{"):
        parser = new_parser("value", "")
        parser.add_argument("--value", type=Any)
        return parser.parse_args([f"--value={text}"]).value
    return as_number(as_typed(text))


def as_typed(text: str) -> Any:
    """Return the value that JSON writes in the same characters, and any other text as it is.

    The hyperparameter of LightningCLI that is made of it is the same argument again, so that a text is not changed.

    Example::

        >>> as_typed("5"), as_typed("[1, 2]"), as_typed("1e-3"), as_typed("[0-9]")
        (5, [1, 2], '1e-3', '[0-9]')
    """
    try:
        read = json.loads(text)
    except ValueError:
        return text
    return read if json.dumps(read) == text and not isinstance(read, str) else text


def as_number(value: Any) -> Any:
    """Return the number that a text such as ``1e-3`` means, and any other value as it is.

    Example::

        >>> as_number("1e-3"), as_number("adam"), as_number(3)
        (0.001, 'adam', 3)
    """
    return float(value) if isinstance(value, str) and _EXPONENT.fullmatch(value) else value
