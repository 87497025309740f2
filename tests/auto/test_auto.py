"""Unchanged programs in jobs: with one line, with the job's variable, and with neither."""

import shutil
from functools import partial
from pathlib import Path

import pytest

import lightning_sm
from lightning_sm._lightning import installed_namespaces
from lightning_sm._lightning.wrapped_method import named_arguments, set_by_variables
from lightning_sm.errors import OptionError
from tests.helpers.fresh import run_fresh
from tests.helpers.opt_ml import OptMl
from tests.helpers.processes import Job
from tests.projects.container import log_lines

_PROGRAMS = Path(__file__).parent / "programs"
_NAMESPACES = [each.name for each in installed_namespaces()]


def start(folder, kind, mode, *words, namespace=_NAMESPACES[0], **variables):
    """A job of a program, which has the line at its top or not."""
    if mode == "variable":
        variables["LIGHTNING_SM_AUTO"] = "1"
    script = _PROGRAMS / f"{kind}.py"
    return Job(folder, script, namespace, "line" if mode == "line" else "none", *words, path=[_PROGRAMS], **variables)


@pytest.mark.parametrize(
    ("kind", "mode", "nodes"),
    [
        ("script", "variable", 2),
        pytest.param("script", "line", 1, marks=pytest.mark.full),
        pytest.param("hydra_app", "line", 2, marks=pytest.mark.full),
    ],
)
def test_an_unchanged_trainer_trains_in_the_jobs_world(tmp_path, kind, mode, nodes):
    # The other namespace with the line than with the variable, where both are installed.
    words = ["--test-alone"] if kind == "script" else []
    job = start(tmp_path, kind, mode, *words, namespace=_NAMESPACES[-1 if mode == "line" else 0])
    results = job.torchrun(nodes, 2 // nodes).results(2)
    base = tmp_path / "algo-1"
    assert results[0]["weights"] == results[1]["weights"]
    for result in results:
        assert result["world"] == [2, nodes]
        # With several, test(ckpt_path="best") warns.
        assert result["checkpoints"] == ["ModelCheckpoint"]
        assert result["strategy"] == "SMDDPStrategy"
        assert {"AutoResume", "ModelExport", "TrainingMonitor"} < set(result["callbacks"])
    if words:  # the Trainer that rank 0 makes for a test stays its own
        assert results[0]["alone"]["world"] == [1, 1]
        assert "AutoResume" not in results[0]["alone"]["callbacks"]
        assert results[0]["tested"][0]["test_loss"] > 0
    assert (base / "model" / "model.pt").exists()
    assert job.output.count("Exported the ") == 1
    assert list((base / "output" / "data" / "checkpoints").rglob("fit-0/step-*.ckpt"))
    why = "lightning_sm.auto()" if mode == "line" else "LIGHTNING_SM_AUTO=1"
    # Not in torchrun's agents, either.
    assert job.output.count(f"because of {why}. LIGHTNING_SM_AUTO=0 in the job's environment switches it off.") == 1
    assert job.output.count("SageMaker settings:") == 1


@pytest.mark.full
def test_without_line_and_variable_nobody_trains_alone(tmp_path):
    job = start(tmp_path, "script", "protected").torchrun(2, 1)
    assert 0 not in job.codes
    assert not list(tmp_path.glob("rank-*.json"))
    for host in ("algo-1", "algo-2"):
        reason = (tmp_path / host / "output" / "failure").read_text()
        assert "TopologyError" in reason
        assert "import lightning_sm; lightning_sm.auto()" in reason
        assert "LIGHTNING_SM_AUTO=1" in reason


@pytest.mark.full
def test_each_of_several_fits_resumes(tmp_path):
    first = start(tmp_path, "script", "variable", "--fits", 3).one_per_host(1)
    (before,) = first.results(1)
    saved = tmp_path / "algo-1" / "output" / "data" / "checkpoints"
    assert {path.parent.name for path in saved.rglob("step-8.ckpt")} == {"fit-0", "fit-1", "fit-2"}
    assert (saved / "checkpoints" / "fold2").is_dir()
    assert first.output.count("progress fit end") == 3
    # As in a container that replaces one that was lost in the third fit.
    for folder in (saved / "checkpoints" / "fold2", *saved.glob("*/fit-2"), *tmp_path.glob("algo-1/[im]*")):
        shutil.rmtree(folder)
    (tmp_path / "rank-0.json").unlink()
    second = start(tmp_path, "script", "variable", "--fits", 3).one_per_host(1)
    (after,) = second.results(1)
    assert after["weights"] == before["weights"]
    assert second.output.count("Saved ") == 1
    assert (tmp_path / "algo-1" / "model" / "model.pt").exists()


@pytest.mark.full
def test_a_trainer_for_one_after_one_whose_processes_lightning_starts_stays_as_it_is(tmp_path):
    code = """
    import lightning_sm
    import {name} as pl
    lightning_sm.auto()
    for devices in (1, 2, 1):
        trainer = pl.Trainer(accelerator="cpu", devices=devices, num_nodes=1, logger=False)
        say(trainer.world_size, "WorldCheck" in [type(callback).__name__ for callback in trainer.callbacks])
    """
    job = OptMl(tmp_path / "opt-ml").host("algo-1").environ()
    assert run_fresh(code.format(name=_NAMESPACES[0]), **job) == [[1, True], [2, True], [1, False]]


@pytest.mark.full
def test_a_trainer_whose_callbacks_the_program_replaces_keeps_the_jobs(tmp_path):
    code = """
    import os
    import lightning_sm
    lightning_sm.auto()
    import {name} as pl
    from tests.helpers.tiny import loader, tiny_model
    os.chdir("{folder}")
    kinds = lambda: [type(callback).__name__ for callback in trainer.callbacks]
    trainer = pl.Trainer(max_epochs=1, logger=False, enable_progress_bar=False, num_sanity_val_steps=0)
    made = set(kinds())
    own = pl.callbacks.ModelCheckpoint("runs", every_n_epochs=1)
    trainer.logger = pl.loggers.CSVLogger(trainer.default_root_dir)
    trainer.callbacks = [own]
    trainer.validate(tiny_model(pl), loader(), verbose=False)
    trainer.callbacks = [own, pl.callbacks.ModelCheckpoint(filename="default")]
    trainer.fit(tiny_model(pl), loader())
    say(sorted(made - set(kinds())), own.best_model_path, os.listdir(trainer.log_dir + "/checkpoints"))
    """
    job = OptMl(tmp_path / "opt-ml").host("algo-1").environ()
    ((lost, best, linked),) = run_fresh(code.format(name=_NAMESPACES[0], folder=tmp_path), **job)
    checkpoints = tmp_path / "opt-ml" / "output" / "data" / "checkpoints"
    assert set(lost) <= {"ModelSummary", "ProgressBar", "TQDMProgressBar"}
    assert Path(best).parent == checkpoints / "runs"
    assert (checkpoints / "default.ckpt").exists()
    # SageMaker uploads them once.
    assert "default.ckpt" in linked
    assert not list(tmp_path.glob("opt-ml/output/data/lightning_logs/**/*.ckpt"))
    assert list(checkpoints.glob("*/fit-0/step-8.ckpt"))
    assert (tmp_path / "opt-ml" / "model" / "model.pt").exists()


@pytest.mark.full
def test_what_a_rank_starts_for_something_else_is_left_alone(tmp_path):
    for result in start(tmp_path, "helper", "variable").torchrun(1, 2).results(2):
        assert result["world"] == [2, 1]
        assert result["helpers"] == [[1, [], True], [1, [], True]]


@pytest.mark.full
def test_a_program_that_imports_the_package_is_left_alone(tmp_path):
    script = tmp_path / "own.py"
    script.write_text("import sys\nimport lightning_sm\n" + (_PROGRAMS / "script.py").read_text())
    job = Job(tmp_path, script, _NAMESPACES[0], "none", path=[_PROGRAMS], LIGHTNING_SM_AUTO="1")
    (seen,) = job.one_per_host(1).results(1)
    assert "AutoResume" not in seen["callbacks"]
    assert "lightning_sm._auto" not in seen["modules"]


def test_outside_a_job_auto_does_nothing_but_refuse_unknown_options(monkeypatch, tmp_path):
    monkeypatch.setenv("SAGEMAKER_BASE_DIR", str(tmp_path))
    with log_lines() as lines:
        lightning_sm.auto(save_every="5m")
    assert lines == []
    with pytest.raises(OptionError, match="save_evry"):
        lightning_sm.auto(save_evry="5m")


def test_arguments_are_known_by_name_wherever_they_come_from(monkeypatch):
    class Trainer:
        def __init__(self, logger=None, devices="auto", max_epochs=None):
            pass

    monkeypatch.setenv("PL_TRAINER_MAX_EPOCHS", "3")
    monkeypatch.setenv("PL_TRAINER_DEVICES", "4")
    found = named_arguments(partial(Trainer.__init__, None), (False,), {"devices": 2})
    assert found == {"logger": False, "devices": 2}
    assert set_by_variables(Trainer, found) == {"max_epochs": 3}
    with pytest.raises(TypeError, match="multiple values for argument 'logger'"):
        named_arguments(partial(Trainer.__init__, None), (False,), {"logger": True})
