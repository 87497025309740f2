import os
import subprocess
import sys

import pytest

from lightning_sm._failure import failure_reported, read_job, write_failure
from lightning_sm._job import TrainingJob
from lightning_sm.errors import HyperparameterError, JobConfigError, OutputError
from tests.projects.container import log_lines


@pytest.fixture
def job(tmp_path):
    return TrainingJob(in_container=True, failure_file=str(tmp_path / "output" / "failure"))


def reason(job):
    with open(job.failure_file, encoding="utf-8") as file:
        return file.read()


def test_the_first_reason_stays(job):
    write_failure(job, "first")
    write_failure(job, "second")
    assert reason(job) == "first"


def test_sagemaker_shows_1024_characters(job):
    write_failure(job, "é" * 2000)
    assert reason(job) == "é" * 1024


def test_nothing_outside_a_container(tmp_path):
    write_failure(TrainingJob(), "reason")
    with pytest.raises(OutputError), failure_reported(TrainingJob()):
        raise OutputError("problem")
    assert not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written_hides_no_error(tmp_path):
    (tmp_path / "file").write_text("")
    job = TrainingJob(in_container=True, failure_file=str(tmp_path / "file" / "failure"))
    with log_lines() as lines, pytest.raises(OutputError, match="problem"), failure_reported(job):
        raise OutputError("problem")
    assert "could not be written" in lines[0]


def test_our_own_errors_are_reasons(job):
    with pytest.raises(HyperparameterError), failure_reported(job):
        raise HyperparameterError("problem", hint="Do this.")
    assert reason(job) == "HyperparameterError: problem HINT: Do this."


def test_a_long_problem_leaves_room_for_the_hint(job):
    with pytest.raises(HyperparameterError), failure_reported(job):
        raise HyperparameterError("long " * 500, hint="Do this.")
    assert reason(job).endswith(" HINT: Do this.")
    assert len(reason(job)) == 1024


def test_other_errors_are_the_toolkits_to_report(job, tmp_path):
    with pytest.raises(KeyError), failure_reported(job):
        raise KeyError("theirs")
    assert not (tmp_path / "output").exists()


def test_broken_files_of_the_job(opt_ml, in_environ, tmp_path):
    in_environ(opt_ml.host("algo-1").environ())
    assert read_job().current_host == "algo-1"
    opt_ml.write("resourceconfig.json", "{")
    with pytest.raises(JobConfigError):
        read_job()
    assert "resourceconfig.json is not JSON" in (opt_ml.base / "output" / "failure").read_text()
    in_environ({"SM_OUTPUT_DIR": str(tmp_path / "elsewhere")})
    with pytest.raises(JobConfigError):
        read_job()
    assert (tmp_path / "elsewhere" / "failure").exists()


def test_no_job():
    assert read_job() == TrainingJob()


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ("raise TopologyError('no world', hint='Count.')", "TopologyError: no world HINT: Count."),
        # The toolkit's to report.
        ("raise KeyError('theirs')", None),
        ("sys.exit(3)", None),
    ],
)
def test_errors_of_ours_that_end_a_script(opt_ml, line, reason):
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
