"""Writes the command line by which a run inside a job is parsed, and keeps the parser from ending the program."""

import os
from contextlib import contextmanager
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence

from lightning_sm._arguments import JobArguments
from lightning_sm._config_files import load_config, write_config
from lightning_sm._settings import Settings
from lightning_sm._tree import as_config
from lightning_sm.errors import HyperparameterError

__all__ = ["command_line", "deep_merge", "refusing"]


def command_line(folder: str, arguments: JobArguments, routed: Mapping[str, Any], *, whole: bool) -> List[str]:
    """Return words from which the parser takes each setting in its turn: the later wins.

    Args:
        folder: Where to write the files that the words name.
        arguments: What was said.
        routed: What SageMaker decides, which holds nothing that hyperparameters or a person decided.
        whole: Whether one file must hold everything but the typed words.
    """
    subcommand = [] if arguments.subcommand is None else [arguments.subcommand]
    if whole:
        settings = Settings.collect(arguments.configs, arguments.hyperparameters, (), arguments.subcommand)
        merged = deep_merge(as_config(settings.tree), routed)
        return [*subcommand, *_config_words(folder, "merged.yaml", merged), *arguments.typed]
    # Files with sections, such as "fit:", are read before the subcommand, as LightningCLI wants them.
    sections: List[str] = []
    plain: List[str] = []
    for path in arguments.configs:
        in_sections = arguments.subcommand is not None and arguments.subcommand in load_config(path)
        (sections if in_sections else plain).extend(["--config", path])
    return [
        *sections,
        *subcommand,
        *plain,
        *_config_words(folder, "hyperparameters.yaml", arguments.hyperparameters),
        *arguments.typed,
        *_config_words(folder, "sagemaker.yaml", routed),
    ]


def deep_merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Dict[str, Any]:
    """Merge nested values, the second over the first."""
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = deep_merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


@contextmanager
def refusing(parsers: Sequence[Any], hint: Callable[[], Optional[str]]) -> Iterator[None]:
    """Turn argparse's silent exit into an error that reaches the job's failure reason.

    An abbreviated key is refused too: whoever asks what a person has set would not find it.

    Args:
        parsers: The parser and those of its subcommands that are in use.
        hint: Finds what to do about it.

    Raises:
        HyperparameterError: The parser refused something.
    """

    def refuse(message: object, *_: Any, **__: Any) -> None:
        problem = " ".join(str(message).split())
        raise HyperparameterError(problem, hint=hint() or "Run the same command with --help to see every key.")

    allowed = [parser.allow_abbrev for parser in parsers]
    for parser in parsers:
        parser.error, parser.allow_abbrev = refuse, False
    try:
        yield
    finally:
        for parser, was_allowed in zip(parsers, allowed):
            del parser.error
            parser.allow_abbrev = was_allowed


def _config_words(folder: str, name: str, content: Mapping[str, Any]) -> Iterator[str]:
    if content:
        path = os.path.join(folder, name)
        write_config(path, content)
        yield from ("--config", path)
