"""The console script ``lightning-sm``: ``lightning-sm fit …`` is ``python -m lightning_sm.cli fit …``."""

import errno
import importlib
import io
import os
import signal
import sys
from typing import Callable, Optional, Sequence

from lightning_sm._sagemaker.in_job import is_in_job
from lightning_sm._version import __version__
from lightning_sm.errors import LightningSMError

__all__ = ["main"]

# The function that takes the arguments behind each command (``main`` by default).
_COMMANDS = {
    "launch": "lightning_sm.launch",
    "tune": "lightning_sm.launch:tune",
    "jobs": "lightning_sm.launch:jobs",
    "logs": "lightning_sm.launch:logs",
    "stop": "lightning_sm.launch:stop",
    "artifacts": "lightning_sm.launch:artifacts",
    "rehearse": "lightning_sm.rehearse",
    "entrypoint": "lightning_sm._sagemaker.entrypoint",
    "doctor": "lightning_sm._doctor_command",
    "metrics": "lightning_sm._observe.metrics_command",
    "plan": "lightning_sm._plan",
}
# Commands of LightningCLI, which takes them with the arguments behind them.
_SUBCOMMANDS = ("fit", "validate", "test", "predict")

_HELP = """usage: lightning-sm COMMAND ...

Run any PyTorch Lightning project on Amazon SageMaker Training.

commands:
  fit, validate, test, predict
                  run a project from its config, as LightningCLI does
  launch          send a training job to SageMaker
  tune            send a tuning job to SageMaker, which searches the best hyperparameters
  jobs, logs, stop, artifacts
                  list jobs, show the log of one, stop it, download its model
  rehearse        run a training job on this machine with SageMaker's container software
  doctor          examine this machine and job, and say what to do about what is wrong;
                  with --source-dir a project, as launch does before it sends it
  plan            predict throughput, hours and dollars of a training on several hosts
  metrics         print the metric definitions by which SageMaker finds what a model logs
  entrypoint      print a container entry point that forwards SIGTERM to the training

options:
  -h, --help      show this help message and exit; behind a command, that command's own
  --version       show the version and exit

In a training container a missing command means fit."""

_SUBCOMMAND_HELP = """usage: lightning-sm {0} [--config FILE] [--SETTING VALUE] ...

Run a project from its config, as LightningCLI does.

options:
  -h, --help            show this help message and exit
  --help-all            list every setting of Lightning with its type and default; loads torch and Lightning
  -c, --config FILE     a config file in YAML; of several, a later one wins
  --model CLASS         the LightningModule, such as model.LitModel; --model.ARGUMENT VALUE sets an argument of it
  --data CLASS          the LightningDataModule; --data.ARGUMENT VALUE sets an argument of it
  --trainer.ARGUMENT VALUE
                        an argument of the Trainer, such as --trainer.max_epochs 5
  --sagemaker.OPTION VALUE
                        an option of lightning_sm: docs/settings.md
  --ckpt_path FILE      a checkpoint to load
  --print_config        print the whole config, which can be used as a config file, and exit

example:
  lightning-sm {0} --config config.yaml --trainer.max_epochs 5"""


def main(args: Optional[Sequence[str]] = None) -> Optional[int]:
    """Run the command that the first word names; what only LightningCLI can answer goes to the CLI."""
    args = list(sys.argv[1:] if args is None else args)
    first = args[0] if args else ""
    if first in ("-h", "--help"):
        print(_HELP)
        return 0
    if first == "--version":
        print(f"lightning-sm {__version__}")
        return 0
    if first in _COMMANDS:
        module, _, function = _COMMANDS[first].partition(":")
        command: Callable[[Sequence[str]], Optional[int]] = getattr(importlib.import_module(module), function or "main")
        return _exit_status(first, lambda: command(args[1:]))
    if first in _SUBCOMMANDS and args[1:] in (["-h"], ["--help"]):
        print(_SUBCOMMAND_HELP.format(first))
        return 0
    if not is_in_job(os.environ):
        if not args:
            print(_HELP, file=sys.stderr)
            return 2
        if not first.startswith("-") and first not in (*_COMMANDS, *_SUBCOMMANDS):
            print(_unknown(first), file=sys.stderr)
            return 2
        if sys.stderr.isatty():
            print("Loading torch and Lightning …", file=sys.stderr, flush=True)
    from lightning_sm.cli import main as cli

    cli(["--help" if word == "--help-all" else word for word in args])
    return None


def _exit_status(name: str, command: Callable[[], Optional[int]]) -> Optional[int]:
    """Run a command and return its exit status: its own, or that of an error, which is one line on stderr."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # A terminal, a file or a pipe of another encoding than UTF-8 must not end it at a letter of a log.
        sys.stdout.reconfigure(errors="backslashreplace")
    try:
        status = command()
        print(end="", flush=True)  # where there is no output (`>&-`), too
        return status
    except LightningSMError as error:
        print(f"lightning-sm {name}: {error}", file=sys.stderr)
    except BrokenPipeError:
        # Who reads the output has ended, as `head` does; what is left of it must not fail when Python exits.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE
    except OSError as error:
        if error.filename is None and error.errno != errno.ENOSPC:
            raise  # not of a file
        hint = "Check the rights and the space there; TMPDIR names the folder for temporary files."
        print(f"lightning-sm {name}: {error}. HINT: {hint}", file=sys.stderr)
    return 2 if name in ("rehearse", "plan") else 1


def _unknown(word: str) -> str:
    import difflib

    commands = (*_SUBCOMMANDS, *_COMMANDS)
    closest = difflib.get_close_matches(word, commands, n=1)
    hint = f"Did you mean {closest[0]}? " if closest else ""
    return f"lightning-sm: error: There is no command {word!r}. HINT: {hint}Commands: {', '.join(commands)}."


if __name__ == "__main__":
    sys.exit(main())
