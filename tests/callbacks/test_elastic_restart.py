"""``ElasticRestart`` with a real SIGUSR1; ``tests/sharded/test_elastic.py`` has it with HyperPod's real agent."""

import os
import signal
import sys

import pytest

from lightning_sm._export import load_file
from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import callback_class
from tests.helpers.tiny import loader, tiny_model, weights
from tests.projects.container import log_lines

NAMESPACE = installed_namespaces()[-1]
PL = NAMESPACE.module()
# What the package's module of this name does in one process, as its version 1.1.3 needs torch before 2.12.
HANDLER = """
import signal
received = []
signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
def elastic_event_detected():
    return bool(received)
"""


class Scale(PL.Callback):
    """Sends SIGUSR1 in a step, as the agent does."""

    def __init__(self, step):
        self.step, self.steps = step, 0

    def on_train_batch_start(self, *_, **__):
        self.steps += 1
        if self.steps == self.step:
            os.kill(os.getpid(), signal.SIGUSR1)


@pytest.fixture
def agent(tmp_path, monkeypatch):
    """The variables and the package of an agent of a job with an elastic policy."""
    package = tmp_path / "packages" / "hyperpod_elastic_agent"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "elastic_event_handler.py").write_text(HANDLER)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH", "/tmp/hyperpod_elastic_agent_7.sock")
    monkeypatch.setenv("HYPERPOD_SIGNAL_COORDINATION", "distributed")
    before = signal.getsignal(signal.SIGUSR1)
    yield package
    signal.signal(signal.SIGUSR1, before)
    for name in [name for name in sys.modules if name.startswith("hyperpod_elastic_agent")]:
        del sys.modules[name]


def elastic(directory=None):
    return callback_class(NAMESPACE, "ElasticRestart")(directory)


def trainer_of(tmp_path, *callbacks, **arguments):
    return PL.Trainer(
        accelerator="cpu",
        devices=1,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        enable_checkpointing=False,
        num_sanity_val_steps=0,
        default_root_dir=str(tmp_path),
        callbacks=list(callbacks),
        **{"max_epochs": 3, **arguments},
    )


def test_a_scaled_job_saves_exits_well_and_goes_on(agent, tmp_path):
    saved = tmp_path / "saved"

    def callbacks():
        names = ("AutoResume", "DataPosition") if NAMESPACE.version >= (1, 6) else ()
        made = [callback_class(NAMESPACE, name)(*([str(saved)] if name == "AutoResume" else [])) for name in names]
        return [elastic(str(saved)), *made]

    whole, again = tiny_model(PL), tiny_model(PL)
    trainer_of(tmp_path).fit(whole, loader(), loader())
    export = callback_class(NAMESPACE, "ModelExport")(model_dir=str(tmp_path / "model"))
    stopped = trainer_of(tmp_path, *callbacks(), export, Scale(3))
    with log_lines() as lines, pytest.raises(SystemExit) as ended:
        stopped.fit(tiny_model(PL), loader(), loader())
    assert ended.value.code == 0
    (path,) = saved.glob("*.ckpt")
    step = load_file(str(path), weights_only=False)["global_step"]
    # Events are looked for about four times a second, which is more than one of these steps.
    assert 3 <= step < 24
    assert path.name == f"stopped-step={step}.ckpt"
    assert f"The elastic agent announces another world size: stopping after step {step}." in lines
    assert not list((tmp_path / "model").iterdir())
    assert not (saved / "finished.json").exists()
    if NAMESPACE.version >= (1, 6):
        sys.modules["hyperpod_elastic_agent.elastic_event_handler"].received.clear()
        trainer_of(tmp_path, *callbacks()).fit(again, loader(), loader())
        assert weights(again) == weights(whole)


def test_without_a_directory_the_job_is_told_that_it_begins_again(agent, tmp_path):
    with log_lines() as lines, pytest.raises(SystemExit) as ended:
        trainer_of(tmp_path, elastic(), Scale(3)).fit(tiny_model(PL), loader(), loader())
    assert ended.value.code == 0
    assert "No checkpoint is saved: neither this callback nor a ModelCheckpoint names a directory." in lines


@pytest.mark.parametrize(
    "variable", [None, ("HYPERPOD_SIGNAL_COORDINATION", "disabled"), ("HYPERPOD_ELASTICAGENT_SOCKET_SERVER_PATH", "")]
)
def test_a_job_without_events_is_left_alone(agent, tmp_path, monkeypatch, variable):
    if variable is None:
        (agent / "elastic_event_handler.py").unlink()
    else:
        monkeypatch.setenv(*variable)
    signal.signal(signal.SIGUSR1, lambda *_: None)
    with log_lines() as lines:
        trainer = trainer_of(tmp_path, elastic(str(tmp_path / "saved")), Scale(3), max_epochs=1)
        trainer.fit(tiny_model(PL), loader(), loader())
    assert trainer.global_step == 8
    begins = "Elastic events are not noticed, and SIGUSR1 ends this process: "
    assert sum(line.startswith(begins) for line in lines) == (variable is None)
    assert "hyperpod_elastic_agent.elastic_event_handler" not in sys.modules


def test_what_is_added_to_a_trainer_outside_a_training_container(agent, tmp_path, in_environ):
    from lightning_sm import trainer_settings

    ranks = {"TORCHELASTIC_RUN_ID": "none", "RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0", "GROUP_RANK": "0"}
    in_environ({**ranks, "LOCAL_WORLD_SIZE": "2", "GROUP_WORLD_SIZE": "2", "MASTER_ADDR": "10.0.3.17"})
    saved = str(tmp_path / "saved")
    settings = trainer_settings(trainer_class=PL.Trainer, sagemaker={"checkpoint_dir": saved})
    found = {type(callback).__name__: callback for callback in settings["callbacks"]}
    assert found["ElasticRestart"].directory == found["AutoResume"].directory == saved
    assert found["ModelCheckpoint"].dirpath == saved
    assert {"SafeSaves", "DataPosition", "FinetuningState", "WorldCheck"} <= set(found)
    assert not {"GracefulStop", "HTMLReport", "LogMetrics", "ModelExport"} & set(found)
    assert (settings["devices"], settings["num_nodes"]) == (2, 1)
    with log_lines() as lines:
        settings = trainer_settings(trainer_class=PL.Trainer)
    assert {type(callback).__name__ for callback in settings["callbacks"]} == {"ElasticRestart", "WorldCheck"}
    assert any("and this one then trains from scratch. HINT: Set sagemaker.checkpoint_dir" in line for line in lines)


@pytest.mark.services
def test_in_a_training_container_it_saves_where_the_job_resumes_from(agent, opt_ml, monkeypatch):
    pytest.importorskip("s3fs")
    from lightning_sm import trainer_settings

    opt_ml.host("algo-1")
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(opt_ml.base))
    monkeypatch.setenv("SM_NUM_GPUS", "0")
    own = PL.callbacks.ModelCheckpoint(dirpath="s3://bucket/run-1")
    settings = trainer_settings(trainer_class=PL.Trainer, callbacks=[own])
    found = {type(callback).__name__: callback for callback in settings["callbacks"]}
    assert found["ElasticRestart"].directory == found["AutoResume"].directory == "s3://bucket/run-1"
