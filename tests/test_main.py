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
    ("words", "begins"),
    [
        (["--help"], "usage: lightning-sm COMMAND"),
        (["-h"], "usage: lightning-sm COMMAND"),
        (["--version"], f"lightning-sm {lightning_sm.__version__}\n"),
        (["rehearse", "--help"], "usage: lightning-sm rehearse"),
        (["entrypoint", "--help"], "usage: lightning-sm entrypoint"),
        (["doctor", "--help"], "usage: lightning-sm doctor"),
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
        assert command in shown or command == "tune"  # of Lightning 1.x alone


@pytest.mark.parametrize("command", [["-m", "lightning_sm"], ["-c", "from lightning_sm.__main__ import main; main()"]])
def test_the_console_script_fits(command, opt_ml, monkeypatch):
    from tests.projects.container import Container

    container = Container(opt_ml, monkeypatch)
    ran = container.run(*command, "fit", "--trainer.fast_dev_run=true")
    assert ran.returncode == 0, ran.stderr
    assert container.summary["class_path"] == "tiny_model.TinyModel"
