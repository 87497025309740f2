"""Runs a program until its parser has read the command line, in a process of its own that :mod:`_line` starts.

The words of this process are the file of the answer, the program, and the program's own words. The answer, in JSON, is
what the parser refused, or what the parsed line asks for: what the model logs, what is monitored, the accelerator.
"""

import argparse
import importlib
import json
import os
import runpy
import sys
from pathlib import Path
from typing import Any, Callable, Dict, List, NoReturn, Optional, Type

from lightning_sm.errors import HyperparameterError, JobConfigError, RoutingError

__all__: List[str] = []


def _answer(path: str, **found: Any) -> NoReturn:
    Path(path).write_text(json.dumps(found), encoding="utf-8")
    # Nothing more of the program is run, its exit handlers neither.
    os._exit(0)


def _stop_after(cls: Type[Any], method: str, depth: List[None], stop: Callable[[], NoReturn]) -> None:
    """End the process when the outermost call of a parser's methods has read the words of the process."""
    original = getattr(cls, method)

    def parse(self: Any, args: Any = None, *rest: Any, **named: Any) -> Any:
        depth.append(None)
        try:
            found = original(self, args, *rest, **named)
        finally:
            depth.pop()
        if not depth and (args is None or list(args) == sys.argv[1:]):
            stop()
        return found

    setattr(cls, method, parse)


def _stop_before_objects(path: str) -> None:
    """End the process when LightningCLI has parsed and is about to make the objects."""
    import jsonargparse

    def instantiate(parser: Any, config: Any, *_: Any, **__: Any) -> NoReturn:
        cli = sys._getframe(1).f_locals.get("self")
        chosen = config.get("subcommand")
        _answer(path, **_asked(cli, config if chosen is None else config[chosen]))

    for name in ("instantiate_classes", "instantiate"):
        setattr(jsonargparse.ArgumentParser, name, instantiate)


def _asked(cli: Any, config: Any) -> Dict[str, Any]:
    """What a parsed line of LightningCLI asks for."""
    tree = config.as_dict() if hasattr(config, "as_dict") else dict(config)
    model = _model_class(cli, tree.get("model"))
    trainer = tree.get("trainer") or {}
    return {
        "model": f"{model.__module__}.{model.__qualname__}" if isinstance(model, type) else None,
        "logged": [],
        "is_complete": False,
        "monitored": sorted(set(_monitored([trainer.get("callbacks"), tree.get("lr_scheduler")]))),
        "accelerator": str(trainer.get("accelerator")),
    }


def _model_class(cli: Any, given: Any) -> Any:
    if isinstance(given, dict) and isinstance(given.get("class_path"), str):
        module, _, name = given["class_path"].rpartition(".")
        return getattr(importlib.import_module(module), name, None)
    return getattr(cli, "model_class", None)


def _monitored(node: Any) -> List[str]:
    if isinstance(node, dict):
        found = [node["monitor"]] if isinstance(node.get("monitor"), str) else []
        return found + [name for inner in node.values() for name in _monitored(inner)]
    return [name for inner in node for name in _monitored(inner)] if isinstance(node, (list, tuple)) else []


def main(words: List[str]) -> None:
    """Run the program until its parser is done."""
    path, program, *rest = words
    sys.argv = [program, *rest]
    text = Path(program).read_text(encoding="utf-8", errors="replace")
    refused: Optional[str] = None
    hint: Optional[str] = None
    if "CLI" in text or "lightning_sm" in text:
        _stop_before_objects(path)
    if "CLI" not in text:
        depth: List[None] = []
        for method in ("parse_args", "parse_known_args"):
            _stop_after(argparse.ArgumentParser, method, depth, lambda: _answer(path))
    try:
        runpy.run_path(program, run_name="__main__")
    except (HyperparameterError, RoutingError, JobConfigError) as error:
        refused, hint = error.problem, error.hint
    except SystemExit as ended:
        if ended.code == 2:
            # The usage error, which argparse has written.
            refused = ""
    _answer(path, refused=refused, hint=hint)


if __name__ == "__main__":
    main(sys.argv[1:])
