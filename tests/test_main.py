import errno
import io
import json
import os
import re
import subprocess
import sys
from unittest import mock

import pytest

import lightning_sm
from lightning_sm import __main__ as entry
from lightning_sm._settings.line import SUBCOMMANDS

_ISSUE = ["--params", "25M", "--step-ms", "120", "--hosts", "1,2", "--instance", "ml.g5.12xlarge"]
_NO_COMMAND = (
    "lightning-sm: error: There is no command {!r}. HINT: {}Commands: fit, validate, test, predict, launch, tune, "
    "jobs, logs, stop, artifacts, rehearse, entrypoint, doctor, metrics, plan.\n"
)
# Words, the exit code, how the output begins, and how the errors do.
_ANSWERS = [
    (["--help"], 0, "usage: lightning-sm COMMAND", ""),
    (["-h"], 0, "usage: lightning-sm COMMAND", ""),
    (["--version"], 0, f"lightning-sm {lightning_sm.__version__}\n", ""),
    (["rehearse", "--help"], 0, "usage: lightning-sm rehearse", ""),
    (["entrypoint", "--help"], 0, "usage: lightning-sm entrypoint", ""),
    (["doctor", "--help"], 0, "usage: lightning-sm doctor", ""),
    (["launch", "--help"], 0, "usage: lightning-sm launch", ""),
    (["tune", "--help"], 0, "usage: lightning-sm tune", ""),
    (["artifacts", "--help"], 0, "usage: lightning-sm artifacts", ""),
    (["metrics", "--help"], 0, "usage: lightning-sm metrics", ""),
    (["plan", *_ISSUE], 0, "25 M parameters, 100 MB of gradients, 120 ms a step on one host", ""),
    # Short, and says how to see all.
    (["fit", "--help"], 0, "usage: lightning-sm fit", ""),
    ([], 2, "", "usage: lightning-sm COMMAND"),
    (["lauch", "--image", "x"], 2, "", _NO_COMMAND.format("lauch", "Did you mean launch? ")),
    (["fti", "--image", "x"], 2, "", _NO_COMMAND.format("fti", "Did you mean fit? ")),
    (["x", "--image", "x"], 2, "", _NO_COMMAND.format("x", "")),
]
_ANSWER = """
import contextlib, io, json, sys
from lightning_sm.__main__ import main
for words in json.load(sys.stdin):
    output, errors = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(output), contextlib.redirect_stderr(errors):
        try:
            code = main(words)
        except SystemExit as error:
            code = error.code
    heavy = {"boto3", "lightning", "numpy", "pytorch_lightning", "torch"} & set(sys.modules)
    print(json.dumps([code, output.getvalue(), errors.getvalue(), sorted(heavy)]))
"""


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({}, ["fit", "--config", "a.yaml"]),
        *(({"SM_CURRENT_HOST": "algo-1", "SM_HOSTS": '["algo-1"]'}, words)
          for words in ([], ["--trainer.max_epochs", "3"], ["lauch"])),
    ],
)  # fmt: skip
def test_other_words_are_the_clis_and_in_a_job_all_others(variables, words, in_environ, monkeypatch, capsys):
    received = []
    in_environ(variables)
    monkeypatch.setattr("lightning_sm.cli.main", received.append)
    monkeypatch.setattr(sys, "argv", ["lightning-sm", *words])
    assert entry.main() is None
    assert (received, *capsys.readouterr()) == ([words], "", "")


def test_what_needs_no_torch_loads_none():
    typed = json.dumps([words for words, *_ in _ANSWERS])
    answers = subprocess.check_output([sys.executable, "-c", _ANSWER], input=typed, text=True).splitlines()
    for (words, code, begins, errors), answer in zip(_ANSWERS, map(json.loads, answers)):
        output, said = answer[1:3]
        assert answer == [code, output, said, []], words
        assert output.startswith(begins), words
        assert said.startswith(errors), words
        assert bool(output) is not bool(said), words
        if words == ["fit", "--help"]:
            assert len(output.splitlines()) < 30
            assert "--help-all" in output
    assert len(answers) == len(_ANSWERS)


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


def test_help_shows_every_command(capsys):
    assert entry.main(["--help"]) == 0
    shown = re.split(r"[\s,]+", capsys.readouterr().out)
    assert {*SUBCOMMANDS, *entry._COMMANDS, *entry._SUBCOMMANDS, "--version"} <= set(shown)


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (OSError(errno.ENOSPC, "No space left on device"), "[Errno 28] No space left on device. HINT: Check"),
        (PermissionError(errno.EACCES, "Permission denied", "x"), "[Errno 13] Permission denied: 'x'. HINT: Check"),
    ],
)
def test_a_file_that_cannot_be_written_is_one_line(error, told, monkeypatch, capsys):
    monkeypatch.setattr("lightning_sm.launch.artifacts", mock.Mock(side_effect=error))
    assert entry.main(["artifacts", "job-1"]) == 1
    assert capsys.readouterr().err.startswith(f"lightning-sm artifacts: {told}")
    monkeypatch.setattr("lightning_sm.launch.artifacts", mock.Mock(side_effect=ConnectionResetError()))
    with pytest.raises(ConnectionResetError):
        entry.main(["artifacts", "job-1"])


def test_an_output_of_another_encoding_shows_what_it_can(monkeypatch):
    output = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", output)
    monkeypatch.setattr("lightning_sm.launch.logs", lambda args: print("épochs → 5"))
    assert entry.main(["logs", "job-1"]) is None
    assert output.buffer.getvalue() == rb"\xe9pochs \u2192 5" + b"\n"
    monkeypatch.setattr(sys, "stdout", None)
    assert entry.main(["logs", "job-1"]) is None
