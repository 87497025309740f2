import subprocess
import sys

import pytest

import lightning_sm
from lightning_sm import __main__ as entry
from lightning_sm._config.arguments import SUBCOMMANDS


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
    code = (
        "import sys, time; from lightning_sm.__main__ import main\n"
        "try: code = main(sys.argv[1:])\n"
        "except SystemExit as error: code = error.code\n"
        "assert not {'torch', 'pytorch_lightning', 'lightning', 'jsonargparse', 'boto3'} & set(sys.modules)\n"
        "assert time.process_time() < 2\n"
        "sys.exit(code)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(begins)


def test_help_shows_every_command(capsys):
    assert entry.main(["--help"]) == 0
    shown = capsys.readouterr().out
    for command in (*SUBCOMMANDS, "rehearse", "entrypoint", "--version"):
        assert command in shown


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
