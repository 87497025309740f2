import os
import subprocess
import sys

import pytest

from lightning_sm._failure import failure_reported, read_job, report_exit
from lightning_sm._failure.report import report_noted
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm.errors import HyperparameterError, JobConfigError, OutputError, TopologyError
from tests.helpers.environ import torchrun
from tests.helpers.failure_file import reason
from tests.projects.container import log_lines

_LINK = TopologyError("").link


def test_nothing_outside_a_container(tmp_path):
    with pytest.raises(OutputError), failure_reported(TrainingJob()):
        raise OutputError("problem")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_hides_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    job = TrainingJob(in_container=True, failure_file=str(tmp_path / "file" / "failure"))
    with log_lines() as lines:
        with pytest.raises(OutputError, match="problem"), failure_reported(job):
            raise OutputError("problem")
        report_noted()
    assert "could not be written" in lines[0]


def test_our_own_errors_are_reasons(job):
    with pytest.raises(HyperparameterError), failure_reported(job):
        raise HyperparameterError("problem", hint="Do this.")
    assert reason(job) == f"HyperparameterError: problem HINT: Do this. ({HyperparameterError('').link})"


def test_a_long_problem_leaves_room_for_the_hint(job):
    with pytest.raises(HyperparameterError), failure_reported(job):
        raise HyperparameterError("long " * 500, hint="Do this.")
    assert reason(job).endswith(f" HINT: Do this. ({HyperparameterError('').link})")
    assert len(reason(job)) == 1024


def test_other_errors_may_yet_be_caught(job, tmp_path):
    with pytest.raises(KeyError), failure_reported(job):
        raise KeyError("theirs")
    assert not (tmp_path / "output").exists()


def test_broken_files_of_the_job(opt_ml, in_environ, tmp_path):
    in_environ(opt_ml.host("algo-1").environ())
    assert read_job().current_host == "algo-1"
    opt_ml.write("resourceconfig.json", "{")
    with pytest.raises(JobConfigError):
        read_job()
    report_noted()
    assert "resourceconfig.json is not JSON" in (opt_ml.base / "output" / "failure").read_text()
    in_environ({"SM_OUTPUT_DIR": str(tmp_path / "elsewhere")})
    with pytest.raises(JobConfigError):
        read_job()
    report_noted()
    assert (tmp_path / "elsewhere" / "failure").exists()


def test_no_job():
    assert read_job() == TrainingJob()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "raise TopologyError('no world', hint='Count.')",
            f"TopologyError: no world (on algo-1) HINT: Count. ({_LINK})",
        ),
        ("raise KeyError('theirs')", "KeyError: 'theirs' (on algo-1; at <string>:3 in <module>)"),
        # A stop is no failure, and what a program means by its exit code only itself knows.
        ("sys.exit(3)", None),
        ("sys.exit(143)", None),
        ("raise KeyboardInterrupt", None),
        # Nor is the end of a fork's child the program's.
        ("import os; os.fork() and sys.exit(4 * bool(os.wait())); raise KeyError('child')", None),
    ],
)
def test_what_ends_a_script(opt_ml, line, reason):
    opt_ml.host("algo-1")
    imports = "import sys; from lightning_sm._failure import report_uncaught; from lightning_sm.errors import *"
    done = subprocess.run(
        [sys.executable, "-c", f"{imports}\nreport_uncaught(); report_uncaught()\n{line}"],
        env={**os.environ, **opt_ml.environ()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode != 0
    assert done.stderr.count("Traceback") == ("raise" in line)
    failure = opt_ml.base / "output" / "failure"
    assert (failure.read_text(encoding="utf-8") if failure.exists() else None) == reason


def test_an_uncaught_error_about_the_jobs_own_files(opt_ml):
    opt_ml.write("resourceconfig.json", "{")
    code = (
        "from lightning_sm._failure import report_uncaught; from lightning_sm import TrainingJob\n"
        "report_uncaught()\nTrainingJob.resolve()"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **opt_ml.environ()}, capture_output=True)
    assert done.returncode == 1
    assert (opt_ml.base / "output" / "failure").read_text(encoding="utf-8").startswith("JobConfigError: ")


def _ended(opt_ml, code, **variables):
    done = subprocess.run(
        [sys.executable, "-c", f"from lightning_sm._failure import report_uncaught; report_uncaught()\n{code}"],
        env={**os.environ, **opt_ml.environ(**variables)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    failure = opt_ml.base / "output" / "failure"
    return failure.read_text(encoding="utf-8") if failure.exists() else None


def test_the_rank_of_a_launcher_and_no_secrets(opt_ml):
    opt_ml.host("algo-2", "algo-1", "algo-2").hyperparameters(**{"logger.api_key": "0123456789"})
    code = "raise OSError('refused 0123456789 and s3cr3t, from http://me:pass@host/')"
    reason = _ended(opt_ml, code, **torchrun(1, 2, 0, 1, 1), HF_TOKEN="s3cr3t")
    assert reason == (
        "OSError: refused *** and ***, from http://***@host/ (rank 1 on algo-2; at <string>:2 in <module>)"
    )


def test_a_lost_peer_without_a_watch(opt_ml):
    opt_ml.host("algo-2", "localhost", "algo-2")
    code = "raise RuntimeError('[gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6795')"
    reason = _ended(opt_ml, code, **torchrun(1, 2, 0, 1, 1))
    assert reason.startswith("Lost the connection to other ranks (localhost): RuntimeError: [gloo/transport")
    (opt_ml.base / "output" / "failure").unlink()
    # Alone it has no peers.
    assert _ended(opt_ml, code, **torchrun(0, 1, 0, 1, 0)).startswith("RuntimeError: [gloo/")


def test_a_worker_that_torchrun_starts_again_has_not_failed(opt_ml):
    opt_ml.host("algo-1")
    again = {"TORCHELASTIC_MAX_RESTARTS": 2, "TORCHELASTIC_RESTART_COUNT": 1}
    assert _ended(opt_ml, "raise KeyError('x')", **torchrun(0, 1, 0, 1, 0, **again)) is None
    again["TORCHELASTIC_RESTART_COUNT"] = 2
    assert _ended(opt_ml, "raise KeyError('x')", **torchrun(0, 1, 0, 1, 0, **again)).startswith("KeyError: 'x'")


def test_an_error_that_cannot_be_told_is_printed_all_the_same(opt_ml):
    opt_ml.host("algo-1")
    code = """
class Silent(RuntimeError):
    def __str__(self):
        raise ValueError("no words")
raise Silent()
"""
    assert _ended(opt_ml, code).startswith("Silent: (its __str__ raised ValueError) (on algo-1; at <string>:6")


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit("no data"), "SystemExit: no data ("),
        (SystemExit(3), "SystemExit: 3 ("),
        (SystemExit(), None),
        (SystemExit(0), None),
        (SystemExit(143), None),
        (ValueError("is raised once more"), None),
    ],
)
def test_an_exit_with_a_code_that_means_failure(opt_ml, in_environ, error, told):
    in_environ(opt_ml.host("algo-1").environ())
    report_exit(error)
    report_noted()
    failure = opt_ml.base / "output" / "failure"
    assert failure.exists() is (told is not None)
    assert told is None or failure.read_text().startswith(told)


_PARSER = """
import sys
from argparse import ArgumentParser
import lightning_sm
parser = ArgumentParser(prog="train.py")
parser.add_argument("--flag", action="store_true")
parser.add_argument("--lr", type=float)
"""


@pytest.mark.parametrize(
    ("code", "status", "told"),
    [
        (
            "parser.parse_args(['--flag', 'True'])",
            2,
            "train.py: error: unrecognized arguments: True (on algo-1) HINT: ",
        ),
        ("parser.parse_args(['--lr', 'x'])", 2, "train.py: error: argument --lr: invalid float value: 'x' ("),
        ("parser.parse_args(['--token', 'hunter2'])", 2, "train.py: error: unrecognized arguments: --token *** ("),
        ("parser.parse_args(['--help'])", 0, None),
        # Who catches it may go on, as in a notebook.
        ("try: parser.parse_args(['x'])\nexcept SystemExit as error: assert error.code == 2", 0, None),
        ("try: parser.parse_args(['x'])\nexcept SystemExit: sys.exit(0)", 0, None),
        (
            "try: parser.parse_args(['x'])\nexcept SystemExit: sys.exit(3)",
            3,
            "train.py: error: unrecognized arguments: x",
        ),
        ("import os; os.fork() or parser.parse_args(['x']); os.wait()", 0, None),
    ],
)
def test_the_arguments_that_a_scripts_own_parser_refuses(opt_ml, code, status, told):
    opt_ml.host("algo-1")
    done = subprocess.run(
        [sys.executable, "-c", _PARSER + code],
        env={**os.environ, **opt_ml.environ()},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == status
    assert "Traceback" not in done.stderr
    failure = opt_ml.base / "output" / "failure"
    assert failure.exists() is (told is not None)
    if told is not None:
        assert failure.read_text().startswith(
            "HyperparameterError: The script's argument parser exited with an error: " + told
        )


def test_the_arguments_that_jsonargparse_refuses(opt_ml):
    opt_ml.host("algo-1")
    code = "import lightning_sm, jsonargparse\ndef main(lr: float = 1.0): ...\njsonargparse.CLI(main, args=['--x=1'])"
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, **opt_ml.environ()}, capture_output=True)
    assert done.returncode == 2
    told = "nrecognized arguments: --x=1 (on algo-1) HINT: "
    assert told in (opt_ml.base / "output" / "failure").read_text()


@pytest.mark.slow
@pytest.mark.parametrize(("more", "hint"), [("", True), ("import lightning_sm.cli\n", False)])
def test_what_lightnings_own_cli_refuses(opt_ml, more, hint):
    opt_ml.host("algo-1")
    code = f"import lightning_sm\n{more}from pytorch_lightning.cli import LightningCLI\nLightningCLI()"
    command = [sys.executable, "-c", code, "--trainer.max_epochs", "1"]
    done = subprocess.run(command, env={**os.environ, **opt_ml.environ()}, capture_output=True, check=False)
    assert done.returncode == 2
    told = (opt_ml.base / "output" / "failure").read_text()
    assert told.startswith("HyperparameterError: The script's argument parser exited with an error: ")
    assert ("HINT: Replace LightningCLI by lightning_sm.cli.SageMakerCLI" in told) is hint


def test_no_parser_is_touched_outside_a_container(tmp_path):
    code = "import argparse; before = argparse.ArgumentParser.exit; import lightning_sm\n"
    done = subprocess.run(
        [sys.executable, "-c", code + "assert argparse.ArgumentParser.exit is before"],
        env={**os.environ, "SAGEMAKER_BASE_DIR": str(tmp_path)},
        check=False,
    )
    assert done.returncode == 0


_FIT = """
import contextlib, os, sys
from lightning_sm import _failure, TrainingJob
from lightning_sm.errors import OutputError
_failure.report_uncaught()

def fit(error):
    try:
        raise error
    except BaseException as caught:
        _failure.report_exit(caught)
        raise

def ours():
    with _failure.failure_reported(TrainingJob.resolve()):
        raise OutputError("no space")

def caught(function, *arguments):
    with contextlib.suppress(BaseException):
        function(*arguments)
"""


@pytest.mark.parametrize(
    ("lines", "told"),
    [
        # The program catches it and ends well.
        ("caught(ours)", None),
        ("caught(fit, SystemExit(3))", None),
        ("caught(fit, SystemExit(3)); sys.exit(0)", None),
        ("sys.exit(caught(ours))", None),
        ("caught(ours); sys.exit(143)", None),
        ("caught(ours); os._exit(0)", None),
        ("caught(fit, SystemExit(3)); os._exit(0)", None),
        # What this exit means is known to the interpreter only.
        ("caught(ours); raise SystemExit(0)", None),
        ("caught(ours); os.fork() or sys.exit(1); os.wait()", None),
        # It ends with what it caught, or with what followed from it.
        ("ours()", "OutputError: no space"),
        ("caught(ours); sys.exit(1)", "OutputError: no space"),
        ("caught(ours); os._exit(1)", "OutputError: no space"),
        ("fit(SystemExit('no data'))", "SystemExit: no data"),
        ("try: fit(SystemExit('no data'))\nfinally: print()", "SystemExit: no data"),
        ("with contextlib.suppress(ValueError): fit(SystemExit(4))", "SystemExit: 4"),
        # A later failure is the true one.
        ("caught(ours); raise KeyError('true')", "KeyError: 'true'"),
        ("caught(fit, SystemExit(3)); ours()", "OutputError: no space"),
        ("caught(fit, SystemExit(3)); caught(fit, SystemExit('true')); sys.exit(2)", "SystemExit: true"),
    ],
)
def test_what_the_program_catches_is_a_failure_only_if_it_ends_with_one(opt_ml, lines, told):
    opt_ml.host("algo-1")
    environ = {**os.environ, **opt_ml.environ()}
    subprocess.run([sys.executable, "-c", _FIT + lines], env=environ, capture_output=True, check=False)
    failure = opt_ml.base / "output" / "failure"
    assert failure.exists() is (told is not None)
    assert told is None or failure.read_text().startswith(told)


_HELPER = "import lightning_sm; raise KeyError('of a helper')"
_START = f"""
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
def test_processes_that_a_program_starts_speak_only_as_ranks(opt_ml, lines, told):
    opt_ml.host("algo-1")
    environ = {**os.environ, **opt_ml.environ(AGAIN=f"{_START}start(LOCAL_RANK='1')")}
    subprocess.run([sys.executable, "-c", _START + lines], env=environ, capture_output=True, check=False)
    failure = opt_ml.base / "output" / "failure"
    assert failure.exists() is (told is not None)
    assert told is None or failure.read_text().startswith(told)


@pytest.mark.parametrize(("rank", "told"), [({"LOCAL_RANK": "0"}, False), ({"LOCAL_RANK": "1", "RANK": "1"}, True)])
@pytest.mark.parametrize("shell", [False, True])
def test_a_parent_of_the_same_rank_that_has_not_imported_the_package(opt_ml, rank, told, shell):
    opt_ml.host("algo-1")
    start = ["/bin/sh", "-c", '"$@"; exit $?', "sh"] if shell else []
    code = "import os, subprocess, sys; subprocess.run(sys.argv[2:], env={**os.environ, **eval(sys.argv[1])})"
    command = [sys.executable, "-c", code, str(rank), *start, sys.executable, "-c", _HELPER]
    environ = {**os.environ, **opt_ml.environ(**torchrun(0, 2, 0, 2, 0))}
    subprocess.run(command, env=environ, capture_output=True, check=True, timeout=60)
    assert (opt_ml.base / "output" / "failure").exists() is told
