"""Writes the command line by which a run inside a job is parsed, and keeps the parser from ending the program."""

import os
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Callable, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from lightning_sm._config.arguments import JobArguments
from lightning_sm._config.config_files import as_config, config_text, load_config
from lightning_sm._config.given import MARK, Layer, add_marks
from lightning_sm._config.settings import COMMAND_LINE, CONFIG, HYPERPARAMETER, VARIABLE, Settings
from lightning_sm.errors import HyperparameterError

__all__ = ["CommandLine", "config_words", "deep_merge", "refusing"]

_CONFIG_PREFIX = 'Parser key "config": '


@dataclass(frozen=True)
class CommandLine:
    """The words of a run, from which a parser takes each setting in its turn: the later wins.

    Args:
        front: Words before the layers: config files in sections such as ``fit:``, as LightningCLI wants them, and the
            subcommand.
        layers: What config files, hyperparameters and a person set.
        sections: Files of which a section is read at a mark of this name, because a file without sections goes before.
    """

    front: Tuple[str, ...]
    layers: Tuple[Layer, ...]
    sections: Mapping[str, str]

    @classmethod
    def of(
        cls,
        arguments: JobArguments,
        *,
        always: Sequence[str] = (),
        whole: bool = False,
        routed: Optional[Mapping[str, Any]] = None,
    ) -> "CommandLine":
        """Write the words of a run.

        Args:
            arguments: What was said.
            always: Config files below all others and below variables, for a parser that is asked for no defaults.
            whole: Whether one config must hold everything but the typed words.
            routed: What that config holds beside.
        """
        configs = [*always, *arguments.configs]
        subcommand = () if arguments.subcommand is None else (arguments.subcommand,)
        typed = [Layer(HYPERPARAMETER, arguments.listed), Layer(COMMAND_LINE, arguments.typed)]
        if whole:
            settings = Settings.collect(configs, arguments.hyperparameters, (), arguments.subcommand)
            merged = Layer(CONFIG, config_words(deep_merge(as_config(settings.tree), routed or {})))
            return cls(subcommand, (merged, *typed), {})
        front: List[str] = []
        layers: List[Layer] = []
        sections: Dict[str, str] = {}
        for index, path in enumerate(configs):
            in_sections = arguments.subcommand is not None and arguments.subcommand in load_config(path)
            if in_sections and not any(layer.words for layer in layers):
                front += ["--config", path]
            elif in_sections:
                sections[f"section-{index}"] = path
                layers.append(Layer(os.path.basename(path), (f"{MARK}=section-{index}",)))
            else:
                layers.append(Layer(os.path.basename(path), ("--config", path)))
            if index == len(always) - 1:
                layers.append(Layer(VARIABLE, ()))
        layers.append(Layer(HYPERPARAMETER, config_words(arguments.hyperparameters)))
        return cls((*front, *subcommand), (*layers, *typed), sections)

    @property
    def words(self) -> List[str]:
        """All words."""
        return [*self.front, *(word for layer in self.layers for word in layer.words)]

    def read_sections_with(self, parser: Any, subcommand: Optional[str]) -> None:
        """Let a parser read the sections of files that come after a file without sections."""
        reached = add_marks(parser)
        for name, path in self.sections.items():
            reached[name] = lambda values, path=path: _read_section(parser, values, path, str(subcommand))  # type: ignore[misc]


def config_words(content: Mapping[str, Any]) -> Tuple[str, ...]:
    """The words that set nested values; as text and not as a file, so that paths in it begin where the run does."""
    return ("--config", config_text(content)) if content else ()


def deep_merge(under: Mapping[str, Any], over: Mapping[str, Any]) -> Dict[str, Any]:
    """Merge nested values, the second over the first."""
    merged = dict(under)
    for key, value in over.items():
        old = merged.get(key)
        merged[key] = deep_merge(old, value) if isinstance(old, dict) and isinstance(value, dict) else value
    return merged


@contextmanager
def refusing(parsers: Sequence[Any], hint: Callable[[str], Optional[str]]) -> Iterator[None]:
    """Turn argparse's silent exit into an error that reaches the job's failure reason.

    An abbreviated key is refused too: whoever asks what a person has set would not find it.

    Args:
        parsers: The parser and those of its subcommands that are in use.
        hint: Finds what to do about the parser's problem.

    Raises:
        HyperparameterError: The parser refused something.
    """

    def refuse(message: object, *_: Any, **__: Any) -> None:
        # A config within the line is refused first by itself, and then again as a word of the line.
        problem = " ".join(str(message).split()).partition(" HINT: ")[0]
        while problem.startswith(_CONFIG_PREFIX):
            problem = problem[len(_CONFIG_PREFIX) :]
        raise HyperparameterError(problem, hint=hint(problem) or "Run the same command with --help to see every key.")

    allowed = [parser.allow_abbrev for parser in parsers]
    for parser in parsers:
        parser.error, parser.allow_abbrev = refuse, False
    try:
        yield
    finally:
        for parser, was_allowed in zip(parsers, allowed):
            del parser.error
            parser.allow_abbrev = was_allowed


def _read_section(parser: Any, values: Any, path: str, subcommand: str) -> None:
    from jsonargparse.typing import Path_fr

    section = load_config(path)[subcommand]
    if not isinstance(section, Mapping):
        raise HyperparameterError(f"The section {subcommand!r} of the config file {path} is {section!r}.")
    flag = "--config"
    # jsonargparse before 4.19 has no such context.
    with getattr(Path_fr(path), "relative_path_context", nullcontext)():
        parser._option_string_actions[flag](parser, values, config_text(section), flag)
