"""Which error of a program is its failure reason, told by the failure file after its end."""

import os
import subprocess
import sys

import pytest

from lightning_sm._failure import failure_reported, read_job
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import JobConfigError, OutputError, TopologyError
from tests.helpers.environ import torchrun
from tests.helpers.failure_file import reason

_START = """
import contextlib, os, subprocess, sys, tempfile, threading
from lightning_sm import _failure, TrainingJob
from lightning_sm.errors import *

def fit(error):
    try:
        raise error
    except BaseException as caught:
        _failure.report_exit(caught)
        raise

def ours():
    with _failure.failure_reported(TrainingJob.resolve()):
        raise OutputError("no space")

def theirs():
    raise KeyError("layers")

def caught(function, *arguments):
    with contextlib.suppress(BaseException):
        function(*arguments)

def caught_in_thread():
    caught(ours)
    thread = threading.Thread(target=caught, args=(sys.exit, "a thread"))
    thread.start()
    thread.join()
"""


@pytest.fixture
def ended(opt_ml):
    """Run a program in a job's container; return its failure reason, its exit code and what it printed as errors."""
    opt_ml.host("algo-1")

    def ended(code, *words, **variables):
        done = subprocess.run(
            [sys.executable, "-c", code, *words],
            env={**os.environ, **opt_ml.environ(**variables)},
            capture_output=True,
            text=True,
            check=False,
        )
        path = opt_ml.base / "output" / "failure"
        return path.read_text(encoding="utf-8") if path.exists() else None, done.returncode, done.stderr

    return ended


def says(text, told):
    """Whether a failure reason begins so; ``None`` where there must be none."""
    return text is None if told is None else (text or "").startswith(told)


def test_nothing_outside_a_container(tmp_path):
    with pytest.raises(OutputError), failure_reported(TrainingJob()):
        raise OutputError("problem")
    assert not list(tmp_path.iterdir())
    assert read_job() == TrainingJob()
    code = "import argparse, sys; before = sys.exit, sys.excepthook; import lightning_sm\n"
    subprocess.run(
        [sys.executable, "-c", code + "assert (sys.exit, sys.excepthook) == before"],
        env={**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path)},
        check=True,
    )


def test_broken_files_of_the_job(opt_ml, in_environ, tmp_path):
    in_environ(opt_ml.host("algo-1").environ())
    assert read_job().current_host == "algo-1"
    opt_ml.write("resourceconfig.json", "{")
    for variables, path in (
        ({}, opt_ml.base / "output" / "failure"),
        ({"SM_OUTPUT_DIR": str(tmp_path / "elsewhere")}, tmp_path / "elsewhere" / "failure"),
    ):
        in_environ(variables)
        with pytest.raises(JobConfigError):
            read_job()
        assert "resourceconfig.json is not JSON" in reason(TrainingJob(failure_file=str(path)))


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        ("raise TopologyError('no world', hint='Count.')",
         f"TopologyError: no world (on algo-1) HINT: Count. ({TopologyError('').link})"),
        ("theirs()", "KeyError: 'layers' (on algo-1; at <string>:29 in <module> > <string>:18 in theirs)"),
        # As libraries do that print tracebacks.
        ("sys.excepthook = print; theirs()", "KeyError: 'layers'"),
        ("del sys.excepthook; theirs()", "KeyError: 'layers'"),
        ("class Silent(RuntimeError):\n    def __str__(self): raise ValueError\nraise Silent",
         "Silent: (its __str__ raised ValueError) (on algo-1; at "),
        ("try: theirs()\nexcept KeyError: raise ValueError('explained') from None", "ValueError: explained (on algo-1"),
        # The working directory is gone.
        ("with tempfile.TemporaryDirectory() as gone: os.chdir(gone); exec(compile('theirs()', '/a/b/c.py', 'exec'))",
         "KeyError: 'layers' (on algo-1; at <string>:29 in <module> > b/c.py:1 in <module> > <string>:18 in theirs)"),
        # What cannot be described: where a relative path leads from there.
        ("with tempfile.TemporaryDirectory() as gone: os.chdir(gone); exec(compile('theirs()', 'c.py', 'exec'))",
         "KeyError (on algo-1)"),
        # A stop is no failure, and what a program means by its exit code only itself knows.
        ("sys.exit(3)", None),
        ("sys.exit(143)", None),
        ("raise KeyboardInterrupt", None),
        # The program catches it and ends well.
        ("caught(ours)", None),
        ("caught(theirs); sys.exit(1)", None),
        ("caught(fit, SystemExit(3))", None),
        ("caught(fit, SystemExit(3)); sys.exit(0)", None),
        ("sys.exit(caught(ours))", None),
        ("caught(ours); sys.exit(143)", None),
        ("caught(ours); os._exit(0)", None),
        # What this exit means is known to the interpreter only.
        ("caught(ours); raise SystemExit(0)", None),
        # It has caught these before it begins to train.
        ("caught(sys.exit, 'no data'); _failure.forget_exit(); raise SystemExit(0)", None),
        ("caught(fit, SystemExit(3)); _failure.forget_exit(); raise SystemExit(0)", None),
        ("caught(fit, SystemExit(3)); _failure.forget_exit(); sys.exit(1)", "SystemExit: 3"),
        # This ends a thread.
        ("caught_in_thread(); raise SystemExit(0)", None),
        ("caught_in_thread(); sys.exit(1)", "OutputError: no space"),
        # The end of a fork's child is not the program's.
        ("caught(ours); os.fork() or sys.exit(1); os.wait()", None),
        ("os.fork() or theirs(); os.wait()", None),
        # It ends with what it caught, or with what followed from it.
        ("ours()", "OutputError: no space"),
        ("caught(ours); sys.exit(1)", "OutputError: no space"),
        ("caught(ours); os._exit(1)", "OutputError: no space"),
        ("try: theirs()\nexcept KeyError: sys.exit(1)", "KeyError: 'layers'"),
        ("try: theirs()\nexcept KeyError: os._exit(1)", "KeyError: 'layers'"),
        ("try: theirs()\nexcept KeyError: exit(1)", "KeyError: 'layers'"),
        ("try: theirs()\nexcept KeyError: quit('no data')", "KeyError: 'layers'"),
        ("try: theirs()\nexcept KeyError: exit()", None),
        ("sys.exit('no data')", "SystemExit: no data (on algo-1)"),
        ("exit('no data')", "SystemExit: no data (on algo-1)"),
        ("caught(ours); sys.exit('no data')", "SystemExit: no data"),
        ("fit(SystemExit('no data'))", "SystemExit: no data"),
        ("try: fit(SystemExit('no data'))\nfinally: print()", "SystemExit: no data"),
        ("with contextlib.suppress(ValueError): fit(SystemExit(4))", "SystemExit: 4"),
        ("fit(SystemExit(0))", None),
        # A later failure is the true one.
        ("caught(ours); raise KeyError('true')", "KeyError: 'true'"),
        ("caught(fit, SystemExit(3)); ours()", "OutputError: no space"),
        ("caught(fit, SystemExit(3)); caught(fit, SystemExit('true')); sys.exit(2)", "SystemExit: true"),
    ],
)  # fmt: skip
def test_what_ends_a_program(ended, lines, told):
    text, _, printed = ended(_START + lines)
    assert says(text, told), text
    assert "could not be reported" not in printed


def test_the_rank_of_a_launcher_and_no_secrets(ended, opt_ml):
    opt_ml.host("algo-2", "algo-1", "algo-2").hyperparameters(**{"logger.api_key": "0123456789"})
    code = "import lightning_sm\nraise OSError('refused 0123456789 and s3cr3t, from http://me:pass@host/')"
    text, *_ = ended(code, **torchrun(1, 2, 0, 1, 1), HF_TOKEN="s3cr3t")
    assert text == "OSError: refused *** and ***, from http://***@host/ (rank 1 on algo-2; at <string>:2 in <module>)"


@pytest.mark.parametrize(
    ("launched", "told"),
    [
        (torchrun(1, 2, 0, 1, 1), "Lost the connection to other ranks: RuntimeError: [gloo/transport"),
        # Alone it has no peers.
        (torchrun(0, 1, 0, 1, 0), "RuntimeError: [gloo/"),
    ],
)
def test_a_lost_peer_without_a_monitor(ended, launched, told):
    code = "import lightning_sm\nraise RuntimeError('[gloo/transport/tcp/pair.cc:553] Connection closed by peer')"
    assert says(ended(code, **launched)[0], told)


_PARSER = """
import sys
from argparse import ArgumentParser
import lightning_sm
parser = ArgumentParser(prog="train.py")
parser.add_argument("--flag", action="store_true")
parser.add_argument("--lr", type=float)
"""
_REFUSED = "HyperparameterError: The script's argument parser exited with an error: "


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        ("parser.parse_args(['--flag', 'True'])", 2,
         "train.py: error: unrecognized arguments: True (on algo-1) HINT: "),
        ("parser.parse_args(['--lr', 'x'])", 2, "train.py: error: argument --lr: invalid float value: 'x' ("),
        ("parser.parse_args(['--token', 'hunter2'])", 2, "train.py: error: unrecognized arguments: --token *** ("),
        ("parser.parse_args(['--help'])", 0, None),
        # Who catches it may go on, as in a notebook.
        ("try: parser.parse_args(['x'])\nexcept SystemExit as error: assert error.code == 2", 0, None),
        ("try: parser.parse_args(['x'])\nexcept SystemExit: sys.exit(0)", 0, None),
        ("try: parser.parse_args(['x'])\nexcept SystemExit: sys.exit(3)", 3,
         "train.py: error: unrecognized arguments: x"),
        ("import os; os.fork() or parser.parse_args(['x']); os.wait()", 0, None),
        ("import jsonargparse\ndef main(lr: float = 1.0): ...\njsonargparse.CLI(main, args=['--x=1'])", 2,
         "nrecognized arguments: --x=1 (on algo-1) HINT: "),
        # The parser of our CLI, which is Lightning's.
        ("import lightning_sm.cli\nclass LightningArgumentParser(ArgumentParser): pass\n"
         "LightningArgumentParser().parse_args(['x'])", 2,
         "unrecognized arguments: x (on algo-1) HINT: SageMaker passes"),
        # An error of ours within a parser says more.
        ("import jsonargparse\nfrom lightning_sm.errors import TopologyError\n"
         "try: raise TopologyError('no world')\nexcept TopologyError as error: parser.error(str(error))", 2,
         "TopologyError: no world ("),
    ],
)  # fmt: skip
def test_the_arguments_that_a_scripts_own_parser_refuses(ended, code, status, told):
    text, returned, printed = ended(_PARSER + code)
    assert returned == status
    assert "Traceback" not in printed
    assert says(text, told and ("TopologyError: no world (" if "TopologyError" in told else _REFUSED)), text
    assert told is None or told in text


@pytest.mark.full
def test_what_lightnings_own_cli_refuses(ended):
    code = "import lightning_sm\nfrom pytorch_lightning.cli import LightningCLI\nLightningCLI()"
    text, status, _ = ended(code, "--trainer.max_epochs", "1")
    assert status == 2
    assert text.startswith(_REFUSED)
    assert "HINT: Replace LightningCLI by lightning_sm.cli.SageMakerCLI" in text


_HELPER = "import lightning_sm; raise KeyError('of a helper')"
_STARTS = f"""
import os, subprocess, sys
import lightning_sm
def start(**more):
    return subprocess.run([sys.executable, "-c", {_HELPER!r}], env={{**os.environ, **more}}).returncode
"""


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        # Its parent goes on.
        ("assert start() == 1", None),
        ("sys.exit(start() - 1)", None),
        # Also one that a helper starts, whatever it sets.
        ("subprocess.run([sys.executable, '-c', os.environ['AGAIN']])", None),
        # One that Lightning, or a launcher that the program starts, makes a rank.
        ("start(LOCAL_RANK='1')", "KeyError: 'of a helper'"),
        ("start(TORCHELASTIC_RUN_ID='x', RANK='0', WORLD_SIZE='1', LOCAL_RANK='0', LOCAL_WORLD_SIZE='1', "
         "GROUP_RANK='0')", "KeyError: 'of a helper'"),
        # The program fails because of it, and says so itself.
        ("if start(): raise ValueError('no data')", "ValueError: no data"),
    ],
)  # fmt: skip
def test_processes_that_a_program_starts_speak_only_as_ranks(ended, lines, told):
    text, *_ = ended(_STARTS + lines, AGAIN=f"{_STARTS}start(LOCAL_RANK='1')")
    assert says(text, told), text


@pytest.mark.parametrize(("rank", "is_told"), [({"LOCAL_RANK": "0"}, False), ({"LOCAL_RANK": "1", "RANK": "1"}, True)])
@pytest.mark.parametrize("shell", [False, True])
def test_a_parent_of_the_same_rank_that_has_not_imported_the_package(ended, rank, is_told, shell):
    start = ["/bin/sh", "-c", '"$@"; exit $?', "sh"] if shell else []
    code = "import os, subprocess, sys; subprocess.run(sys.argv[2:], env={**os.environ, **eval(sys.argv[1])})"
    text, *_ = ended(code, str(rank), *start, sys.executable, "-c", _HELPER, **torchrun(0, 2, 0, 2, 0))
    assert (text is not None) is is_told
