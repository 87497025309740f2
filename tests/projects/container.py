"""A tiny Lightning project in a fake SageMaker container."""

import json
import logging
import shutil
import sys
from contextlib import contextmanager
from pathlib import Path

from lightning_sm._failure import monitor, report_noted
from lightning_sm._lightning import Namespace
from lightning_sm.cli import sagemaker_cli_class
from tests.helpers.processes import run_python

__all__ = ["Container", "TINY", "config_of", "log_lines", "loggers_of"]

TINY = Path(__file__).parent / "tiny"


def config_of(cli):
    """The parsed config; Lightning 1.5 keeps a dict."""
    return cli.config if isinstance(cli.config, dict) else cli.config.as_dict()


def loggers_of(trainer):
    """The trainer's loggers; Lightning 1.5 has one that may stand for several."""
    if hasattr(trainer, "loggers"):
        return trainer.loggers
    return [] if trainer.logger is None else list(getattr(trainer.logger, "_logger_iterable", [trainer.logger]))


@contextmanager
def log_lines():
    """The package's log lines. Its logger does not propagate, and pytest's versions differ in what they do then."""
    lines = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())
    logger = logging.getLogger("lightning_sm")
    logger.addHandler(handler)
    try:
        yield lines
    finally:
        logger.removeHandler(handler)


class Container:
    """The project's folder is the working directory, and its channels hold a file each."""

    def __init__(self, opt_ml, monkeypatch):
        self.base = opt_ml.base
        self.opt_ml = opt_ml.host("algo-1")
        self.code = self.base / "code"
        shutil.copytree(TINY, self.code, ignore=shutil.ignore_patterns("__pycache__"))
        self.monkeypatch = monkeypatch
        monkeypatch.chdir(self.code)
        monkeypatch.syspath_prepend(str(self.code))
        monkeypatch.setattr(sys, "argv", ["train.py"])
        # The hosts of this job that there are not will not start later.
        monkeypatch.setattr(monitor, "_LATE_HOSTS_TIMEOUT", 0.1)
        self.variables = {"SAGEMAKER_BASE_DIR": str(self.base), "SM_NUM_GPUS": "0"}
        for name, value in self.variables.items():
            monkeypatch.setenv(name, value)
        self.channels("training")
        self.hyperparameters(config="config.yaml")

    def leave(self):
        """Go on as outside a container, in the same folder."""
        for name in self.variables:
            self.monkeypatch.delenv(name)
        return self

    def channels(self, *names):
        self.opt_ml.write("inputdataconfig.json", {name: {"TrainingInputMode": "File"} for name in names})
        for name in names:
            (self.channel(name)).mkdir(parents=True, exist_ok=True)
            (self.channel(name) / "sample.txt").write_text("1")
        return self

    def channel(self, name):
        return self.base / "input" / "data" / name

    def hyperparameters(self, values=None, **more):
        """Write hyperparameters as SDK v2 does, beside the config file of the project."""
        self.opt_ml.hyperparameters(**{"config": "config.yaml", **(values or {}), **more})
        return self

    def raw_hyperparameters(self, **values):
        """Write hyperparameters as somebody who calls the API."""
        self.opt_ml.write("hyperparameters.json", {"config": "config.yaml", **values})
        return self

    def config(self, text, name="config.yaml"):
        """Add to the project's config, or write another."""
        before = (TINY / name).read_text() if (TINY / name).exists() else ""
        (self.code / name).write_text(before + text)
        return self

    def cli(self, *words, cls=None, run=False, add=lambda parser: None, **arguments):
        """Make a CLI, by default one that only sets everything up; a function may add arguments to its parser."""
        if cls is None:
            methods = {"add_arguments_to_parser": lambda cli, parser: add(parser)}
            cls = type("OwnCLI", (sagemaker_cli_class(Namespace("pytorch_lightning")),), methods)
        self.monkeypatch.setattr(sys, "argv", ["train.py", *words])
        return cls(run=run, **arguments)

    def run(self, *command, **variables):
        """Run a command in another process, as the toolkit does."""
        # This program is the job's, and not a helper of the process of these tests.
        variables = {**self.variables, "LIGHTNING_SM_RANK_PROCESS": "", **variables}
        return run_python(*command, folder=self.code, code=None, **variables)

    @property
    def failure(self):
        """The failure file, as if the program now ended because of an error that it had."""
        report_noted()
        path = self.base / "output" / "failure"
        return path.read_text() if path.exists() else None

    @property
    def model(self):
        return self.base / "model"

    @property
    def summary(self):
        return json.loads((self.model / "model.json").read_text())
