"""``sagemaker.doctor: true`` ends a job before its hosts wait for each other."""

import json
import sys
from pathlib import Path

import pytest

from lightning_sm import TrainingJob
from lightning_sm._doctor import CHECKS, Finding
from lightning_sm._doctor.at_start import examine_host
from lightning_sm._sagemaker.topology import Topology
from lightning_sm.errors import DoctorError
from tests.helpers.environ import torchrun
from tests.helpers.failure_file import reason
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import Job

_SCRIPT = Path(__file__).parent / "train.py"


@pytest.fixture
def opt_ml(tmp_path, monkeypatch):
    found = OptMl(tmp_path / "ml").host("algo-1")
    # So that the test takes it away again.
    monkeypatch.setenv("LIGHTNING_SM_EXAMINED", "")
    monkeypatch.delenv("LIGHTNING_SM_EXAMINED")
    for name, value in found.environ(TRAINING_JOB_NAME="job", SM_MASTER_PORT=7792).items():
        monkeypatch.setenv(name, value)
    return found


def check(checks=CHECKS):
    job = TrainingJob.resolve()
    examine_host(checks, job, Topology.resolve(job=job))


def warning(_):
    yield Finding("other", "slow", "Wait.")


def errors(number):
    return (lambda _: [Finding(f"check {index}", f"problem {index}", f"Do {index}.", True) for index in range(number)],)


def test_a_good_host_has_its_numbers_in_the_log(opt_ml, lines):
    check()
    assert lines[-1].startswith("Doctor on algo-1: 24 checks, ")
    assert not [line for line in lines if "\n" in line]


def test_errors_are_raised_and_each_has_its_line(opt_ml, lines):
    with pytest.raises(DoctorError) as raised:
        check((warning, *errors(2)))
    assert raised.value.problem == "The doctor found errors on algo-1: check 0: problem 0; check 1: problem 1"
    assert raised.value.hint == "Do 0."
    assert "Doctor on algo-1: check 1: problem 1 HINT: Do 1." in lines
    assert "Doctor on algo-1: other: slow HINT: Wait." in lines
    assert reason(TrainingJob.resolve()).startswith("DoctorError: The doctor found errors")


def test_a_host_is_examined_once_and_warnings_do_not_end_a_job(opt_ml, lines):
    check((warning,))
    assert lines == ["Doctor on algo-1: other: slow HINT: Wait.", "Doctor on algo-1: 1 checks, 1 warning, no errors."]
    check(errors(1))


def test_other_local_ranks_leave_it_to_the_first(opt_ml, monkeypatch):
    for name, value in torchrun(1, 2, 1, 2, 0, 1).items():
        monkeypatch.setenv(name, value)
    check(errors(1))


def test_outside_of_a_container_nothing_is_examined():
    examine_host(errors(1), TrainingJob(), Topology.resolve({}))


def test_a_config_file_stops_before_the_model_is_built(opt_ml, tmp_path, monkeypatch):
    from lightning_sm.cli import main

    config = {"sagemaker": {"doctor": True}, "model": {"class_path": "a_model_of_the_doctor.Model"}}
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    (tmp_path / "a_model_of_the_doctor.py").write_text(
        "import pytorch_lightning as pl\n"
        "class Model(pl.LightningModule):\n"
        "    def __init__(self):\n"
        "        raise ZeroDivisionError('it was built')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "argv", ["train.py"])
    (opt_ml.base / "model").write_text("a file")
    with pytest.raises(DoctorError, match="The model directory"):
        main(["fit", "--config", str(tmp_path / "config.yaml")])


def reasons(folder):
    return [(folder / host / "output" / "failure").read_text() for host in ("algo-1", "algo-2")]


@pytest.mark.full
def test_an_error_on_one_host_is_the_reason_on_both(tmp_path):
    OptMl(tmp_path / "algo-2")
    (tmp_path / "algo-2" / "model").write_text("a file")
    # It has less time than a rank waits for another.
    job = Job(tmp_path, _SCRIPT).torchrun(2, 2)
    assert set(job.codes) == {1}, job.output[-4000:]
    said = "DoctorError: The doctor found errors on algo-2: directories: The model directory "
    assert all(text.startswith(said) for text in reasons(tmp_path)), reasons(tmp_path)


@pytest.mark.full
def test_a_host_with_other_files_is_the_reason_on_both(tmp_path):
    for host, names in (("algo-1", ["a.txt"]), ("algo-2", ["a.txt", "b.txt"])):
        OptMl(tmp_path / host).write("inputdataconfig.json", {"training": {"TrainingInputMode": "File"}})
        channel = tmp_path / host / "input" / "data" / "training"
        channel.mkdir(parents=True)
        for name in names:
            (channel / name).write_text(name)
    job = Job(tmp_path, _SCRIPT).torchrun(2, 1)
    assert set(job.codes) == {1}, job.output[-4000:]
    said = "DoctorError: Hosts have different files in the channel 'training': 1 file, 5 bytes, digest "
    for text in reasons(tmp_path):
        assert said in text
        assert " on node 0, 2 files, 10 bytes, digest " in text
