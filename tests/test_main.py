import os
import re
import subprocess
import sys

import pytest

import lightning_sm
from lightning_sm import __main__ as entry
from lightning_sm._settings.line import SUBCOMMANDS

_LOADED = """
import sys
from lightning_sm.__main__ import main
try:
    code = main(sys.argv[1:])
except SystemExit as error:
    code = error.code
heavy = {"boto3", "jsonargparse", "lightning", "numpy", "pytorch_lightning", "torch", "yaml"} & set(sys.modules)
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


def test_rehearse_is_its_own_room(monkeypatch):
    received = []
    monkeypatch.setattr("lightning_sm.rehearse.main", lambda words: received.append(words) or 3)
    assert entry.main(["rehearse", "--hosts", "2"]) == 3
    assert received == [["--hosts", "2"]]


@pytest.mark.parametrize(
    ("words", "is_subcommand"),
    [
        (["--config", "a.yaml"], True),
        (["--config=a.yaml", "--dry-run"], True),
        (["-c", "a.yaml"], True),
        (["--trainer.auto_lr_find=true"], True),
        (["--trainer", "trainer.yaml", "--model.lr", "1"], True),
        (["--print_config"], True),
        ([], False),
        (["--help"], False),
        (["--dry-run"], False),
        (["--objective", "a", "fit", "--config", "a.yaml"], False),
        (["--range", "trainer.max_epochs=[1, 2]", "--", "--model.lr", "1"], False),
        (["fit", "--config", "a.yaml"], False),
        (["--imgae", "x"], False),
    ],
)
def test_tune_is_also_a_subcommand_of_lightning_1(words, is_subcommand, monkeypatch, tmp_path):
    received = []
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    monkeypatch.delenv("TRAINING_JOB_NAME", raising=False)
    monkeypatch.setattr("lightning_sm.cli.main", lambda words: received.append(("cli", words)))
    monkeypatch.setattr("lightning_sm.launch.tune", lambda words: received.append(("tune", words)) or 3)
    assert entry.main(["tune", *words]) == (None if is_subcommand else 3)
    assert received == [("cli", ["tune", *words]) if is_subcommand else ("tune", words)]
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    entry.main(["tune", *words])
    assert received[1] == ("cli", ["tune", *words])
    monkeypatch.delenv("TRAINING_JOB_NAME")
    (tmp_path / "input" / "config").mkdir(parents=True)
    (tmp_path / "input" / "config" / "hyperparameters.json").write_text("{}")
    entry.main(["tune", *words])
    assert received[2] == received[1]


def test_no_option_of_tune_is_one_of_lightning_clis():
    from lightning_sm.launch._words import _parser

    options = {option.lstrip("-") for action in _parser("tune")._actions for option in action.option_strings}
    assert not options & set(entry._CLI_OPTIONS)
    assert "c" not in options


@pytest.mark.parametrize(
    ("words", "begins"),
    [
        (["--help"], "usage: lightning-sm COMMAND"),
        (["-h"], "usage: lightning-sm COMMAND"),
        (["--version"], f"lightning-sm {lightning_sm.__version__}\n"),
        (["rehearse", "--help"], "usage: lightning-sm rehearse"),
        (["entrypoint", "--help"], "usage: lightning-sm entrypoint"),
        (["doctor", "--help"], "usage: lightning-sm doctor"),
        (["tune", "--help"], "usage: lightning-sm tune"),
        (["metrics", "--help"], "usage: lightning-sm metrics"),
    ],
)
def test_help_and_version_load_no_torch(words, begins):
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
        "fit, validate, test, predict, launch, tune, jobs, logs, stop, artifacts, rehearse, entrypoint, doctor, metrics"
    )
    assert done.stderr == f"lightning-sm: error: There is no command {typed!r}. HINT: {hint}Commands: {commands}.\n"


@pytest.mark.slow
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
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    monkeypatch.setattr("lightning_sm.cli.main", received.append)
    assert entry.main(words) is None
    assert (received, *capsys.readouterr()) == ([words], "", "")


def test_help_shows_every_command(capsys):
    assert entry.main(["--help"]) == 0
    shown = re.split(r"[\s,]+", capsys.readouterr().out)
    assert {*SUBCOMMANDS, *entry._COMMANDS, *entry._SUBCOMMANDS, "--version"} <= set(shown)


@pytest.mark.parametrize(
    "command",
    [
        ["-m", "lightning_sm"],
        pytest.param(["-c", "from lightning_sm.__main__ import main; main()"], marks=pytest.mark.slow),
    ],
)
def test_the_console_script_fits(command, opt_ml, monkeypatch):
    from tests.projects.container import Container

    container = Container(opt_ml, monkeypatch)
    ran = container.run(*command, "fit", "--trainer.fast_dev_run=true")
    assert ran.returncode == 0, ran.stderr
    assert container.summary["class_path"] == "tiny_model.TinyModel"
