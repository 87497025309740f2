"""The command line of a job as the project's own parser reads it, in a process of its own in a job that is none."""

import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Mapping, Optional, Tuple

from lightning_sm._sagemaker.hyperparameters import is_reserved
from lightning_sm.errors import LaunchError

__all__ = ["ReadLine", "read_line"]

_TIMEOUT = 120.0
# Programs that read their words by a parser that can be stopped when it is done. Others would be run.
_PARSERS = re.compile(r"\w*CLI\b|ArgumentParser|argparse|lightning_sm\.cli|from lightning_sm import .*cli")


@dataclass(frozen=True)
class ReadLine:
    """What the project's parser read.

    Args:
        problem: Why the line could not be read, where that says nothing about the line.
        model: The class of the model, if the parser knows it.
        logged: The metrics that the model logs.
        is_complete: Whether these are all.
        monitored: The metrics that callbacks and schedulers of the line monitor.
        accelerator: The Trainer's accelerator.
    """

    problem: Optional[str] = None
    model: Optional[str] = None
    logged: Tuple[str, ...] = ()
    is_complete: bool = False
    monitored: Tuple[str, ...] = ()
    accelerator: str = "auto"


def read_line(source_dir: str, entry_point: str, body: Mapping[str, Any], *, local: Mapping[str, str]) -> ReadLine:
    """Let the program of a job read its command line, and stop it when its parser is done.

    Args:
        source_dir: The folder of the program.
        entry_point: The program.
        body: The CreateTrainingJob request.
        local: The local folders of channels that have one, by their names.

    Raises:
        LaunchError: The parser refuses the line.
    """
    program = Path(source_dir, entry_point)
    if program.suffix != ".py" or not _PARSERS.search(program.read_text(encoding="utf-8", errors="replace")):
        return ReadLine()
    encoded = {name: text for name, text in body["HyperParameters"].items() if not is_reserved(name)}
    values = {name: json.loads(text) for name, text in encoded.items()}
    with tempfile.TemporaryDirectory() as base:
        _write_job(Path(base), body, encoded, local)
        answer = Path(base, "answer.json")
        command = [sys.executable, "-m", "lightning_sm.launch._read_line", str(answer), entry_point, *_words(values)]
        environ = {
            **os.environ,
            **body.get("Environment", {}),
            "SAGEMAKER_BASE_DIR": base,
            "TRAINING_JOB_NAME": body["TrainingJobName"],
            "SM_NUM_GPUS": "0",
        }
        try:
            done = subprocess.run(
                command, cwd=source_dir, env=environ, capture_output=True, text=True, timeout=_TIMEOUT, check=False,
                stdin=subprocess.DEVNULL,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return ReadLine(f"{entry_point} had not read its command line after {_TIMEOUT:.0f} s")
        if not answer.is_file():
            last = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
            return ReadLine(f"{entry_point} ended before: {last}")
        found: Dict[str, Any] = json.loads(answer.read_text(encoding="utf-8"))
    if found.get("refused") is not None:
        reason = found["refused"] or (done.stderr.strip().splitlines() or ["a usage error"])[-1]
        raise LaunchError(
            f"{entry_point} refuses its command line: {reason.replace(base, '/opt/ml')}",
            hint=f"{found.get('hint') or 'Correct it.'} --no-check sends it as it is.",
        )
    if "logged" not in found:
        return ReadLine()
    return ReadLine(
        None,
        found["model"],
        tuple(found["logged"]),
        found["is_complete"],
        tuple(found["monitored"]),
        found["accelerator"],
    )


def _write_job(base: Path, body: Mapping[str, Any], encoded: Mapping[str, str], local: Mapping[str, str]) -> None:
    """Write the files of ``/opt/ml`` that a program finds on the first host."""
    config, data = base / "input" / "config", base / "input" / "data"
    config.mkdir(parents=True)
    data.mkdir()
    resources = body["ResourceConfig"]
    count = resources.get("InstanceCount") or sum(each["InstanceCount"] for each in resources.get("InstanceGroups", ()))
    hosts = [f"algo-{number + 1}" for number in range(max(count, 1))]
    channels = {each["ChannelName"]: {"TrainingInputMode": "File"} for each in body.get("InputDataConfig", ())}
    for name in channels:
        if name in local:
            (data / name).symlink_to(Path(local[name]).resolve(), target_is_directory=True)
        else:
            (data / name).mkdir()
            (data / name / "object").touch()
    (base / "model").mkdir()
    for name, content in (
        ("hyperparameters.json", encoded),
        ("inputdataconfig.json", channels),
        ("resourceconfig.json", {"current_host": "algo-1", "hosts": hosts, "network_interface_name": "lo"}),
    ):
        (config / name).write_text(json.dumps(content), encoding="utf-8")


def _words(values: Mapping[str, Any]) -> List[str]:
    """The words that the toolkit makes of hyperparameters: ``to_cmd_args`` of ``sagemaker_training/mapping.py``."""
    words: List[str] = []
    for name, value in sorted(values.items()):
        text = ",".join(f"{key}={value[key]}" for key in value) if isinstance(value, dict) else str(value)
        words += [f"-{name}" if len(name) == 1 else f"--{name}", "" if value is None else text]
    return words
