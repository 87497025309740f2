"""``lightning-sm metrics``: prints the metric definitions of a project."""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import List, Sequence

from lightning_sm._observe.metrics import metric_definitions, metric_names
from lightning_sm.errors import MetricDefinitionError

__all__ = ["main"]

_DESCRIPTION = """Print the metric definitions by which SageMaker finds in a job's log what a model logs.

With --run one batch of training and one of validation are run on the CPU (fast_dev_run), without checkpoints and
exports, and the definitions are those of all metrics that were logged. With --names they are those of the names."""

_TRAINER = {"fast_dev_run": "True", "accelerator": "cpu", "devices": "1", "num_nodes": "1", "strategy": "auto",
            "precision": "32", "logger": "True", "enable_progress_bar": "False"}  # fmt: skip
_RUN = [
    *(f"--trainer.{name}={value}" for name, value in _TRAINER.items()),
    "--sagemaker.export=false", "--sagemaker.report=false", "--sagemaker.doctor=false", "--sagemaker.log_metrics=true",
]  # fmt: skip


def main(args: Sequence[str]) -> int:
    """Run the command; returns its exit code."""
    parser = argparse.ArgumentParser(
        prog="lightning-sm metrics",
        description=_DESCRIPTION,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    of_what = parser.add_mutually_exclusive_group(required=True)
    of_what.add_argument("--run", action="store_true", help="run one batch, and define every metric that is logged")
    of_what.add_argument("--names", nargs="+", metavar="NAME", help="define these names, and nothing else")
    parser.add_argument(
        "args",
        nargs=argparse.REMAINDER,
        help="with --run: the script and its arguments, such as train.py fit --config config.yaml; without a script "
        "those of lightning-sm fit",
    )
    given, rest = parser.parse_known_args(args)
    print(json.dumps(metric_definitions(given.names or _names_of_run([*rest, *given.args])), indent=2))
    return 0


def _names_of_run(args: List[str]) -> List[str]:
    """The names of what is logged when one batch is trained in a job of one host, whose directories are temporary."""
    program = args if args and args[0].endswith(".py") else ["-m", "lightning_sm.cli", "fit", *args]
    with tempfile.TemporaryDirectory() as base:
        config = Path(base, "input", "config")
        config.mkdir(parents=True)
        (config / "resourceconfig.json").write_text(json.dumps({"current_host": "algo-1", "hosts": ["algo-1"]}))
        # Lightning takes from these what a script that reads no arguments does not pass.
        variables = {f"PL_TRAINER_{name.upper()}": value for name, value in _TRAINER.items()}
        environ = {**os.environ, **variables, "SAGEMAKER_BASE_DIR": base, "SM_NUM_GPUS": "0"}
        command = [sys.executable, *program, *_RUN]
        # Of whatever encoding the program prints.
        done = subprocess.run(command, env=environ, capture_output=True, text=True, errors="replace", check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        raise MetricDefinitionError(
            f"The run of one batch ended with exit code {done.returncode}.",
            hint="Its output stands above; names that you know can be given with --names.",
        )
    return metric_names(done.stdout + done.stderr)
