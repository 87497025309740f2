"""``WandbLogger`` in a job: one run for all ranks and all starts. W&B writes to the disk (``WANDB_MODE=offline``)."""

import pytest

from lightning_sm._observe.wandb import continue_wandb_run
from tests.helpers.processes import local_rendezvous

JOB = "cifar-2026-01-31-12-30-59-123"


class WandbLogger:
    """The attributes that Lightning 1.5 to 2.6 give it."""

    def __init__(self, **arguments):
        self._wandb_init = {"name": None, "project": "lightning_logs", "id": None, "resume": "allow", **arguments}
        self._id, self._name, self._experiment = self._wandb_init["id"], self._wandb_init["name"], None


def test_the_run_of_the_job():
    logger = WandbLogger()
    hyperparameters = {"lr": 0.1, "wandb_api_key": "secret", "hf_token": "secret"}
    assert continue_wandb_run(logger, JOB, hyperparameters) == {"id": JOB, "name": JOB, "group": JOB}
    assert (logger._id, logger._name) == (JOB, JOB)
    assert logger._wandb_init["settings"] == {"sagemaker_disable": True}
    assert logger._wandb_init["config"] == {"sagemaker_training_job_name": JOB, "lr": 0.1}
    assert continue_wandb_run(logger, JOB, {}) == {}
    assert continue_wandb_run(WandbLogger(), JOB, {})["id"] == f"{JOB}-2"


def test_what_the_project_sets_stays(monkeypatch):
    monkeypatch.setenv("WANDB_RUN_GROUP", "g")
    settings = {"sagemaker_disable": False, "console": "off"}
    logger = WandbLogger(id="own", name="n", config={"lr": 5}, settings=settings)
    assert continue_wandb_run(logger, JOB, {"lr": 1}) == {}
    assert logger._wandb_init["id"] == logger._id == "own"
    assert logger._wandb_init["settings"] == settings
    assert logger._wandb_init["config"]["lr"] == 5


def test_runs_that_are_not_ours(monkeypatch):
    begun = WandbLogger()
    begun._experiment = object()
    assert continue_wandb_run(begun, JOB, {}) == {}
    assert "settings" not in begun._wandb_init
    monkeypatch.setenv("WANDB_RUN_ID", "mine")
    assert continue_wandb_run(WandbLogger(), JOB, {}) == {}


@pytest.mark.full
def test_one_run_of_all_ranks_with_the_same_id_at_each_start(container, tmp_path):
    pytest.importorskip("wandb", reason="needs the package wandb")
    # As W&B sees a training job.
    variables = {"WANDB_MODE": "offline", "SM_TRAINING_ENV": "{}", "TRAINING_JOB_NAME": JOB}
    words = ("--config=config.yaml", "--trainer.logger=WandbLogger", f"--trainer.logger.save_dir={tmp_path}")
    for _start in range(2):
        launcher = ("-m", "torch.distributed.run", *local_rendezvous(), "--nproc_per_node=2")
        ran = container.run(*launcher, "train.py", "fit", *words, **variables)
        assert ran.returncode == 0, ran.stderr
    runs = [run.name.partition("-run-")[2].partition("-")[2] for run in (tmp_path / "wandb").glob("offline-*")]
    assert runs == [JOB, JOB]
