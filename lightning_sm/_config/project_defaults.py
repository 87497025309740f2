"""What a project's own CLI sets by itself: defaults of its parser, and config files that it always reads."""

import glob
import os
from typing import Any, Dict, Iterator, Mapping, Tuple

from lightning_sm._config.routed import Link
from lightning_sm._config.signatures import init_parameters

__all__ = ["argument_links", "default_configs", "project_defaults"]


def argument_links(parser: Any) -> Tuple[Link, ...]:
    """What ``parser.link_arguments`` links: the parser sets the target, whatever else is said about it."""
    group = getattr(parser, "_links_group", None)
    return tuple(
        Link(
            action.target[0],
            tuple(key for key, _ in action.source),
            action.compute_fn is None and action.apply_on == "parse" and len(action.source) == 1,
            _default_of(parser, action.source[0][0]),
        )
        for action in (() if group is None else group._group_actions)
    )


def _default_of(parser: Any, key: str) -> Any:
    return next((action.default for action in parser._actions if action.dest == key), None)


def default_configs(*parsers: Any) -> Iterator[str]:
    """The files of ``parser_kwargs={"fit": {"default_config_files": […]}}`` that are there, in their order."""
    for parser in parsers:
        for pattern in getattr(parser, "default_config_files", None) or []:
            yield from sorted(glob.glob(os.path.expanduser(str(pattern))))


def project_defaults(parser: Any, classes: Mapping[str, Any]) -> Dict[str, Any]:
    """The defaults that a project set (``trainer_defaults``, ``parser.set_defaults``), by their dotted keys.

    Args:
        parser: The argument parser of the run's subcommand.
        classes: The class of each group, whose own defaults are not the project's.
    """
    found: Dict[str, Any] = {}
    for action in parser._actions:
        group, _, name = str(action.dest).partition(".")
        cls = classes.get(group)
        parameter = init_parameters(cls).get(name) if isinstance(cls, type) else None
        if parameter is None or action.default is None or action.default is parameter.default:
            continue
        if isinstance(action.default, (str, int, float, list, dict)) and action.default == parameter.default:
            continue
        value = action.default
        found[str(action.dest)] = value.as_dict() if hasattr(value, "as_dict") else value
    return found
