"""The command line of a job, read by the project's own parser in a process of its own, in a job that is none.

The process of the program is this module's: it runs the program until its parser is done, and answers in a file.
"""

import argparse
import json
import os
import re
import runpy
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Callable, Dict, List, Mapping, NoReturn, Optional, Sequence, Tuple, Type

import jsonargparse

from lightning_sm._sagemaker.hyperparameters import is_reserved
from lightning_sm.errors import HyperparameterError, JobConfigError, LaunchError, RoutingError

__all__ = ["ReadLine", "decode", "link_channel", "names_cli", "read_line", "write_opt_ml"]

_TIMEOUT = 120.0
# Programs that read their arguments by a parser that can be stopped when it is done. Others would be run.
_CLI = re.compile(r"\w*CLI\b|lightning_sm\.cli|from lightning_sm import .*cli")
_PARSERS = re.compile(rf"{_CLI.pattern}|ArgumentParser|argparse")
_TEXTS = re.compile(r"""(\"{3}|'{3})[\s\S]*?\1|"[^"\n]*"|'[^'\n]*'|#.*""")
# What a launcher, a cluster or a notebook of SageMaker has set here: the container has another world.
_OF_LAUNCHERS = re.compile(r"(SM|OMPI|PMIX?|SLURM|TORCHELASTIC|MASTER|GROUP)_|(LOCAL_)?(RANK|WORLD_SIZE)$|NODE_RANK$")


@dataclass(frozen=True)
class ReadLine:
    """What the project's parser read.

    Args:
        problem: Why the line could not be read, where that says nothing about the line.
        monitored: The metrics that callbacks and schedulers of the line monitor.
        accelerator: The Trainer's accelerator.
    """

    problem: Optional[str] = None
    monitored: Tuple[str, ...] = ()
    accelerator: str = "auto"


def read_line(
    source_dir: str, entry_point: str, body: Mapping[str, Any], *, local: Mapping[str, str], unread: Sequence[str] = ()
) -> ReadLine:
    """Let the program of a job read its command line, and stop it when its parser is done.

    Args:
        source_dir: The folder of the program.
        entry_point: The program.
        body: The CreateTrainingJob request.
        local: The local folders of channels that have one, by their names.
        unread: The config files of the line that are in the container only. Where there are any, nothing is read.

    Raises:
        LaunchError: The parser refuses the line.
    """
    program = Path(source_dir, entry_point)
    if program.suffix != ".py" or not _PARSERS.search(_code_in(program.read_text(encoding="utf-8", errors="replace"))):
        return ReadLine()
    if unread:
        return ReadLine(f"the config file {unread[0]} is in the container only")
    encoded = {name: text for name, text in body.get("HyperParameters", {}).items() if not is_reserved(name)}
    with tempfile.TemporaryDirectory() as base:
        _write_job(Path(base), body, encoded, local)
        answer = Path(base, "answer.json")
        command = [sys.executable, "-m", "lightning_sm.launch._line", str(answer), entry_point, *_to_args(encoded)]
        environ = {
            **{name: value for name, value in os.environ.items() if not _OF_LAUNCHERS.match(name)},
            **body.get("Environment", {}),
            "SAGEMAKER_BASE_DIR": base,
            "TRAINING_JOB_NAME": body["TrainingJobName"],
            "SM_NUM_GPUS": "0",
        }
        errors = Path(base, "stderr")
        try:
            # A file, since a process that the program has started may keep a pipe open.
            with errors.open("wb") as file:
                done = subprocess.run(
                    command, cwd=source_dir, env=environ, timeout=_TIMEOUT, check=False,
                    stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=file,
                )  # fmt: skip
        except subprocess.TimeoutExpired:
            return ReadLine(f"{entry_point} had not read its command line after {_TIMEOUT:.0f} s")
        said = errors.read_text(encoding="utf-8", errors="replace").strip().splitlines()
        last = said[-1] if said else f"exit code {done.returncode}"
        if not answer.is_file():
            return ReadLine(f"{entry_point} ended before: {last}")
        found: Dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if found.get("refused") is not None:
        raise LaunchError(
            f"{entry_point} refuses its command line: {(found['refused'] or last).replace(base, '/opt/ml')}",
            hint=found.get("hint") or "Correct it.",
        )
    return ReadLine(None, tuple(found.get("monitored", ())), found.get("accelerator", "auto"))


def decode(text: str) -> Any:
    """Return the value of a hyperparameter as the toolkit reads it: JSON, else the text itself."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def names_cli(text: str) -> bool:
    """Whether the code of a program names a class of LightningCLI, or the one of this package."""
    return _CLI.search(_code_in(text)) is not None


def _code_in(text: str) -> str:
    """The text of a program without comments and strings, such as a docstring with the word CLI."""
    return _TEXTS.sub("", text)


def _write_job(base: Path, body: Mapping[str, Any], encoded: Mapping[str, str], local: Mapping[str, str]) -> None:
    """Write the files of ``/opt/ml`` that a program finds on the first host."""
    resources = body.get("ResourceConfig", {})
    # Of several preferred types the numbers of instances may differ; the first one is wanted most.
    listed = resources.get("InstanceGroups") or resources.get("InstancePreferences", [resources])[:1]
    count = sum(each.get("InstanceCount", 1) for each in listed)
    hosts = [f"algo-{number + 1}" for number in range(max(count, 1))]
    channels = {each["ChannelName"]: {"TrainingInputMode": "File"} for each in body.get("InputDataConfig", ())}
    config = {
        "hyperparameters.json": encoded,
        "inputdataconfig.json": channels,
        "resourceconfig.json": {"current_host": "algo-1", "hosts": hosts, "network_interface_name": "lo"},
    }
    write_opt_ml(base, config)
    for name in channels:
        folder = base / "input" / "data" / name
        if name in local:
            link_channel(Path(local[name]).resolve(), folder)
        else:
            folder.mkdir()
            (folder / "object").touch()


def link_channel(source: Path, folder: Path) -> None:
    """Make a local folder, or a file, a channel's folder, as the service does with what is below an address in S3."""
    if source.is_file():
        folder.mkdir()
        folder = folder / source.name
    folder.symlink_to(source)


def write_opt_ml(opt_ml: Path, config: Mapping[str, Any]) -> None:
    """Create the folders that a container finds below ``/opt/ml`` when it starts, and the files of ``input/config``."""
    # The output folder matters: without it the toolkit cannot write its failure file and ends with 0.
    for name in ("input/config", "input/data", "model", "output/data", "code"):
        (opt_ml / name).mkdir(parents=True, exist_ok=True)
    for name, content in config.items():
        (opt_ml / "input" / "config" / name).write_text(json.dumps(content), encoding="utf-8")


def _to_args(encoded: Mapping[str, str]) -> List[str]:
    """The arguments that the toolkit makes of hyperparameters: ``to_cmd_args`` of ``sagemaker_training/mapping.py``."""
    args: List[str] = []
    for name, value in sorted((name, decode(text)) for name, text in encoded.items()):
        text = ",".join(f"{key}={value[key]}" for key in sorted(value)) if isinstance(value, dict) else str(value)
        args += [f"-{name}" if len(name) == 1 else f"--{name}", "" if value is None else text]
    return args


def _run(path: str, program: str, *args: str) -> None:
    """Run the program until its parser is done."""
    sys.argv = [program, *args]
    sys.path.insert(0, str(Path(program).resolve().parent))
    depth: List[None] = []
    for cls, method in (
        (argparse.ArgumentParser, "parse_args"),
        (argparse.ArgumentParser, "parse_known_args"),
        (jsonargparse.ArgumentParser, "parse_args"),
    ):
        _stop_after(cls, method, depth, lambda: _answer(path))
    _stop_before_objects(path)
    try:
        runpy.run_path(program, run_name="__main__")
    except (HyperparameterError, RoutingError, JobConfigError) as error:
        _answer(path, refused=error.problem, hint=error.hint)
    except SystemExit as ended:
        # After a usage error argparse has written it.
        _answer(path, refused="" if ended.code == 2 else None)
    _answer(path)


def _answer(path: str, **found: Any) -> NoReturn:
    Path(path).write_text(json.dumps(found), encoding="utf-8")
    # Nothing more of the program is run, its exit handlers neither.
    os._exit(0)


def _stop_after(cls: Type[Any], method: str, depth: List[None], stop: Callable[[], NoReturn]) -> None:
    """End the process when the outermost call of a parser's methods has read the arguments of the process.

    LightningCLI's own parser is stopped later, because it is called several times.
    """
    original = getattr(cls, method)

    def parse(self: Any, args: Any = None, *rest: Any, **named: Any) -> Any:
        depth.append(None)
        try:
            found = original(self, args, *rest, **named)
        finally:
            depth.pop()
        is_cli = any(base.__name__ == "LightningArgumentParser" for base in type(self).__mro__)
        if not depth and not is_cli and (args is None or list(args) == sys.argv[1:]):
            stop()
        return found

    setattr(cls, method, parse)


def _stop_before_objects(path: str) -> None:
    """End the process when LightningCLI has parsed and is about to make the objects."""

    def instantiate(parser: Any, config: Any, *_: Any, **__: Any) -> NoReturn:
        chosen = config.get("subcommand")
        asked = config if chosen is None else config[chosen]
        tree = asked.as_dict() if hasattr(asked, "as_dict") else dict(asked)
        trainer = tree.get("trainer") or {}
        monitored = sorted(set(_monitored([trainer.get("callbacks"), tree.get("lr_scheduler")])))
        _answer(path, monitored=monitored, accelerator=str(trainer.get("accelerator")))

    for name in ("instantiate_classes", "instantiate"):
        setattr(jsonargparse.ArgumentParser, name, instantiate)


def _monitored(node: Any) -> List[str]:
    if isinstance(node, dict):
        found = [node["monitor"]] if isinstance(node.get("monitor"), str) else []
        return found + [name for inner in node.values() for name in _monitored(inner)]
    return [name for inner in node for name in _monitored(inner)] if isinstance(node, (list, tuple)) else []


if __name__ == "__main__":
    _run(*sys.argv[1:])
