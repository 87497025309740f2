"""``lightning-sm metrics``: prints the metric definitions of a project."""

import argparse
import importlib
import json
import os
import subprocess
import sys
import tempfile
from enum import Enum
from pathlib import Path
from typing import Any, Dict, List, Optional, Sequence

from lightning_sm._metrics.definitions import metric_definitions
from lightning_sm._metrics.lines import metric_names
from lightning_sm.errors import LightningSMError, MetricDefinitionError

__all__ = ["Format", "main"]

_DESCRIPTION = """Print the metric definitions by which SageMaker finds in a job's log what a model logs.

By default the source of the model is read, which the config names; nothing is run. With --run one batch of training and
one of validation are run on the CPU (fast_dev_run), without loggers, checkpoints and exports, and the definitions are
those of all metrics that were logged. With --names they are those of the names. Metrics that callbacks of the config
monitor come first.

Other words are those of `lightning-sm fit`, such as --config config.yaml or --model.lr=0.1."""

_RUN_TRAINER = {
    "fast_dev_run": "true",
    "accelerator": "cpu",
    "devices": "1",
    "num_nodes": "1",
    "precision": "32",
    "logger": "true",
    "enable_progress_bar": "false",
}
_RUN_OPTIONS = {"export": "false", "report": "false", "doctor": "false", "log_metrics": "true"}


class Format(str, Enum):
    """How definitions are printed."""

    JSON = "json"
    YAML = "yaml"
    SDK = "sdk"


def main(words: Optional[Sequence[str]] = None) -> int:
    """Run the command; returns its exit code."""
    given, rest = _parser().parse_known_args(words)
    try:
        definitions = metric_definitions(given.names) if given.names else _of_project(rest, given.run)
    except LightningSMError as error:
        print(f"lightning-sm metrics: {error}", file=sys.stderr)
        return 1
    print(_text(definitions, Format(given.format)))
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="lightning-sm metrics",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--run", action="store_true", help="run one batch, and define every metric that is logged")
    parser.add_argument("--names", nargs="+", default=(), metavar="NAME", help="define these names, and nothing else")
    formats = [form.value for form in Format]
    parser.add_argument(
        "--format", choices=formats, default=formats[0], help="default: json; sdk is Python for the SDK"
    )
    return parser


def _of_project(words: List[str], run: bool) -> List[Dict[str, str]]:
    import yaml

    config = yaml.safe_load(_cli(*words, "--print_config").stdout) or {}
    first = _monitored(config)
    if run:
        known = config.get("trainer") or {}
        # A parser lacks arguments whose types its jsonargparse does not know.
        more = [f"--trainer.{name}={value}" for name, value in _RUN_TRAINER.items() if name in known]
        more += [f"--sagemaker.{name}={value}" for name, value in _RUN_OPTIONS.items()]
        done = _cli(*words, *more, in_job=True)
        return metric_definitions(metric_names(done.stdout + done.stderr), first=first)
    class_path = (config.get("model") or {}).get("class_path")
    if class_path is None:
        raise MetricDefinitionError(
            "The config names no class of a model.",
            hint="Give it with --config or --model, or names with --names.",
        )
    if not {"", os.getcwd()}.intersection(sys.path):
        sys.path.insert(0, "")
    module, _, name = class_path.rpartition(".")
    return metric_definitions(getattr(importlib.import_module(module), name), first=first)


def _monitored(config: Dict[str, Any]) -> List[str]:
    callbacks = (config.get("trainer") or {}).get("callbacks") or []
    listed = callbacks if isinstance(callbacks, list) else [callbacks]
    found = [(each.get("init_args") or {}).get("monitor") for each in listed]
    return [monitor for monitor in found if isinstance(monitor, str)]


def _cli(*words: str, in_job: bool = False) -> "subprocess.CompletedProcess[str]":
    """Run ``fit`` in a process of its own: in a job of one host whose directories are temporary, or in none."""
    command = [sys.executable, "-m", "lightning_sm.cli", "fit", *words]
    with tempfile.TemporaryDirectory() as base:
        if in_job:
            config = Path(base, "input", "config")
            config.mkdir(parents=True)
            (config / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]}))
        environ = {**os.environ, "SAGEMAKER_BASE_DIR": base, "SM_NUM_GPUS": "0"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise MetricDefinitionError(
            f"`lightning-sm fit` of this config ended with exit code {done.returncode}.",
            hint="Its output stands above; names that you know can be given with --names.",
        )
    return done


def _text(definitions: List[Dict[str, str]], form: Format) -> str:
    if form is Format.JSON:
        return json.dumps(definitions, indent=2)
    if form is Format.YAML:
        import yaml

        return str(yaml.safe_dump(definitions, sort_keys=False, width=1000)).rstrip()
    lines = [f"    {each!r}," for each in definitions]
    return "\n".join(
        [
            "# SDK v2: Estimator(..., metric_definitions=metric_definitions)",
            "# SDK v3: trainer.with_metric_definitions(",
            '#     [MetricDefinition(name=each["Name"], regex=each["Regex"]) for each in metric_definitions])',
            "metric_definitions = [",
            *lines,
            "]",
        ]
    )
