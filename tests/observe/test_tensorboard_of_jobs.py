"""TensorBoard in a container of SageMaker's own toolkit: what is uploaded at the end, and what while it trains."""

import shutil
from pathlib import Path

import pytest

from tests.helpers.rehearsal import needs
from tests.helpers.s3 import s3_server
from tests.toolkits.running import fill_source, rehearse

pytestmark = pytest.mark.full

SCRIPT = Path(__file__).with_name("train_logged.py")


def rehearsed(folder, *words, **variables):
    source = fill_source(folder / "source")
    shutil.copy(SCRIPT, source / "train.py")
    variables = {"STEPS": "/dev/null", **variables}
    environ = [word for name, value in variables.items() for word in ("--env", f"{name}={value}")]
    options = ("--job-name", "board", *environ)
    return rehearse(
        source, folder / "out", *options, "train.py", "--trainer.max_steps", "4", *words, isolation="loopback"
    )


def uploaded(done):
    return [each["name"] for each in done.summary["uploads"] if "tfevents" in each["name"]]


def steps_in(folder):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return [event.step for event in EventAccumulator(str(folder)).Reload().Scalars("loss")]


@needs(torch=True)
def test_s3_is_written_while_it_trains_and_the_files_are_in_the_output_too(tmp_path, monkeypatch):
    pytest.importorskip("boto3", reason="boto3 is not installed")
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    with s3_server() as s3:
        words = ("--trainer.logger", "TensorBoardLogger", "--trainer.logger.save_dir", "s3://logs/runs")
        done = rehearsed(tmp_path, *words, "--trainer.log_every_n_steps", "1", **s3.variables)
        assert done.exit_code == 0, done.log[-6000:]
        assert s3.folders() == ["runs/lightning_logs/board"]
        for name, value in s3.variables.items():
            monkeypatch.setenv(name, value)
        assert steps_in("s3://logs/runs/lightning_logs/board") == [0, 1, 2, 3]
    assert uploaded(done)[0].startswith("tensorboard/logs/runs/lightning_logs/board/events.out.tfevents.")
    assert "uploaded to s3://logs/runs" in done.log
