import os
import re
import subprocess
import sys

import pytest

import lightning_sm
from lightning_sm import __main__ as entry
from lightning_sm._settings.line import SUBCOMMANDS

_ISSUE = ["--params", "25M", "--step-ms", "120", "--hosts", "1,2", "--instance", "ml.g5.12xlarge"]
_LOADED = """
import sys
from lightning_sm.__main__ import main
try:
    code = main(sys.argv[1:])
except SystemExit as error:
    code = error.code
heavy = {"boto3", "lightning", "numpy", "pytorch_lightning", "torch"} & set(sys.modules)
sys.exit(f"loaded {heavy}" if heavy else code)
"""


def _run_without_torch(*words):
    """Run the command in a process of its own, which fails if it imports what the answer does not need."""
    return subprocess.run([sys.executable, "-c", _LOADED, *words], capture_output=True, text=True, check=False)


def test_other_words_are_the_clis(monkeypatch):
    received = []
    monkeypatch.setattr("lightning_sm.cli.main", received.append)
    assert entry.main(["fit", "--config", "a.yaml"]) is None
    monkeypatch.setattr(sys, "argv", ["lightning-sm", "test"])
    entry.main()
    assert received == [["fit", "--config", "a.yaml"], ["test"]]


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["--help"], "usage: lightning-sm COMMAND"),
        (["-h"], "usage: lightning-sm COMMAND"),
        (["--version"], f"lightning-sm {lightning_sm.__version__}\n"),
        (["rehearse", "--help"], "usage: lightning-sm rehearse"),
        (["entrypoint", "--help"], "usage: lightning-sm entrypoint"),
        (["doctor", "--help"], "usage: lightning-sm doctor"),
        (["launch", "--help"], "usage: lightning-sm launch"),
        (["tune", "--help"], "usage: lightning-sm tune"),
        (["artifacts", "--help"], "usage: lightning-sm artifacts"),
        (["metrics", "--help"], "usage: lightning-sm metrics"),
        (["plan", *_ISSUE], "25 M parameters, 100 MB of gradients, 120 ms a step on one host"),
    ],
)
def test_what_needs_no_torch_loads_none(words, begins):
    done = _run_without_torch(*words)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(begins)


def test_help_of_a_subcommand_is_short_and_says_how_to_see_all():
    done = _run_without_torch("fit", "--help")
    assert (done.returncode, done.stderr) == (0, "")
    assert len(done.stdout.splitlines()) < 30
    assert "--help-all" in done.stdout


def test_no_command_shows_all_of_them():
    done = _run_without_torch()
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("usage: lightning-sm COMMAND")


@pytest.mark.parametrize(
    ("typed", "hint"), [("lauch", "Did you mean launch? "), ("fti", "Did you mean fit? "), ("x", "")]
)
def test_a_command_that_does_not_exist(typed, hint):
    done = _run_without_torch(typed, "--image", "x")
    assert (done.returncode, done.stdout) == (2, "")
    commands = (
        "fit, validate, test, predict, launch, tune, jobs, logs, stop, artifacts, rehearse, entrypoint, doctor, "
        "metrics, plan"
    )
    assert done.stderr == f"lightning-sm: error: There is no command {typed!r}. HINT: {hint}Commands: {commands}.\n"


@pytest.mark.full
def test_all_settings_are_shown_by_lightnings_cli():
    """On a terminal a line says what takes so long."""
    output, terminal = os.openpty()
    command = [sys.executable, "-m", "lightning_sm", "fit", "--help-all"]
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=terminal, text=True, check=False)
    os.close(terminal)
    assert done.returncode == 0
    assert "--trainer.max_epochs" in done.stdout
    assert os.read(output, 1000).decode().startswith("Loading torch and Lightning")
    os.close(output)


@pytest.mark.parametrize("words", [[], ["--trainer.max_epochs", "3"], ["lauch"]])
def test_in_a_job_every_other_word_is_the_clis(words, monkeypatch, capsys):
    received = []
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-1")
    monkeypatch.setenv("SM_HOSTS", '["algo-1"]')
    monkeypatch.setattr("lightning_sm.cli.main", received.append)
    assert entry.main(words) is None
    assert (received, *capsys.readouterr()) == ([words], "", "")


def test_help_shows_every_command(capsys):
    assert entry.main(["--help"]) == 0
    shown = re.split(r"[\s,]+", capsys.readouterr().out)
    assert {*SUBCOMMANDS, *entry._COMMANDS, *entry._SUBCOMMANDS, "--version"} <= set(shown)


def test_the_module_fits(opt_ml, monkeypatch):
    from tests.projects.container import Container

    container = Container(opt_ml, monkeypatch)
    ran = container.run("-m", "lightning_sm", "fit", "--trainer.fast_dev_run=true")
    assert ran.returncode == 0, ran.stderr
    assert container.summary["class_path"] == "tiny_model.TinyModel"
