import math
import os

import pytest
import torch

from lightning_sm._lightning import installed_namespaces
from lightning_sm.callbacks import callback_class
from tests.helpers.program import Program
from tests.helpers.tiny import loader, tiny_model
from tests.observe.made_up import Page
from tests.projects.container import TINY

NAMESPACE = installed_namespaces()[-1]
PL = NAMESPACE.module()


@pytest.fixture
def trainer(tmp_path):
    def make(*callbacks, directory=tmp_path):
        monitor = callback_class(NAMESPACE, "TrainingMonitor")
        return PL.Trainer(
            accelerator="cpu",
            devices=1,
            max_epochs=2,
            num_sanity_val_steps=1,
            logger=False,
            log_every_n_steps=1,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            default_root_dir=str(tmp_path),
            callbacks=[monitor(None, metrics=False, report=str(directory), settings=["a = 1 ← b"]), *callbacks],
        )

    return make


def page_in(folder):
    return Page((folder / "report.html").read_text(encoding="utf-8"))


class Raises(PL.Callback):
    def __init__(self, error):
        self.error = error

    def on_train_batch_end(self, *_, **__):
        raise self.error


class Logs(PL.Callback):
    """Logs what a project may log."""

    def on_train_batch_end(self, trainer, pl_module, *_, **__):
        pl_module.log("loss by step", float(trainer.global_step))
        pl_module.log("<b>bad</b>", math.nan)


def test_a_fit_is_reported(trainer, tmp_path, lines):
    run = trainer(Logs())
    run.validate(tiny_model(PL), loader(), verbose=False)
    assert not (tmp_path / "report.html").exists()
    run.fit(tiny_model(PL), loader(), loader())
    page = page_in(tmp_path)
    assert "TinyModel completed 2 epochs, 16 optimizer steps" in page.shown
    assert f"Wrote the report of the fit to {tmp_path / 'report.html'}" in lines
    values = page.values
    assert float(values["train_loss"][0]) == pytest.approx(float(run.callback_metrics["train_loss"]), rel=1e-4)
    assert values["train_loss"][3] == values["val_loss"][3] == "2"
    assert values["SGD"][:3] == ["0.05", "0.05", "0.05"]
    assert values["loss by step"] == ["16", "1", "16", "16"]
    assert values["<b>bad</b>"] == ["NaN", "", "", "0 + 16 not finite"]
    assert "a = 1 ← b" in page.shown
    assert torch.__version__ in page.shown
    assert "from scratch 0 0" in page.shown
    assert "seconds per batch" in page.shown


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (SystemExit(3), "failed"),
        (SystemExit("no data"), "failed"),
        (SystemExit(143), "SIGTERM received"),
        (SystemExit(0), "The program was left by sys.exit(0)"),
    ],
)
def test_an_exit_is_reported(trainer, tmp_path, error, text):
    with pytest.raises(SystemExit):
        trainer(Raises(error)).fit(tiny_model(PL), loader())
    page = page_in(tmp_path)
    assert text in page.shown
    assert ("stopped" in page.shown) is (text != "failed")


@pytest.mark.parametrize("place", ["a file", "missing below a file"])
def test_a_directory_that_cannot_be_written_is_one_warning(trainer, tmp_path, place, lines):
    (tmp_path / "file").write_text("")
    directory = tmp_path / "file" / ("" if place == "a file" else "below")
    run = trainer(directory=directory)
    run.fit(tiny_model(PL), loader())
    assert run.global_step == 16
    assert len([line for line in lines if "The report of the fit could not be written" in line]) == 1


def test_a_description_that_the_program_has_written_is_not_that_of_an_export(trainer, tmp_path):
    class Writes(PL.Callback):
        def on_train_end(self, *_):
            for name in ("config.json", "model.json", "model.safetensors"):
                (tmp_path / name).write_text("[]")

    export = callback_class(NAMESPACE, "ModelExport")(str(tmp_path))
    trainer(Writes(), export).fit(tiny_model(PL), loader())
    assert "model" not in page_in(tmp_path).headings


def test_a_job_shows_what_sagemaker_determined(container):
    container.hyperparameters({"trainer.max_epochs": 1}).cli(run=True)
    folder = container.base / "output" / "data"
    page = page_in(folder)
    assert "completed 1 epoch" in page.shown
    assert any(row[0].startswith("trainer.default_root_dir = ") for row in page.rows)
    assert ["class_path", "tiny_model.TinyModel"] in page.rows
    assert ["this host", "algo-1"] in page.rows
    assert ["launcher", "one process per host"] in page.rows


def test_a_remote_output_directory_is_replaced_by_the_jobs(opt_ml, in_environ, trainer):
    in_environ(opt_ml.host("algo-1").environ())
    trainer(directory="s3://bucket/logs").fit(tiny_model(PL), loader())
    assert "completed" in page_in(opt_ml.base / "output" / "data").shown


class Ends(PL.Callback):
    """In the program: ends it in the second epoch, after a checkpoint."""

    def on_train_batch_end(self, trainer, *_, **__):
        if trainer.global_step == 12:
            exec(os.environ["END"])


_ENDS = {
    "killed": "os.kill(os.getpid(), 9)",
    "raises": "raise RuntimeError('no <i>way</i>, my_password=hunter2-hunter2')",
    "stopped": "os.kill(os.getpid(), 15)",
    "later": "",
}
# No argument says how it ends: a restarted job has those of its first start.
_WORDS = ("--data.data_dir=.", "--data.batch_size=1", "--trainer.max_epochs=3", "--trainer.logger=false",
          "--sagemaker.save_every=1ms", "--trainer.callbacks=tests.observe.test_report.Ends")  # fmt: skip


@pytest.mark.full
def test_jobs_that_fail_are_stopped_or_killed(tmp_path):
    def page_of(program):
        return page_in(program.folder / "output" / "data")

    killed, raises, stopped, later = programs = [
        Program(tmp_path / name, TINY / "train.py", "fit", f"--config={TINY / 'config.yaml'}", *_WORDS)
        for name in _ENDS
    ]
    code = f"import sys; sys.path.insert(0, {str(TINY)!r}); import pytorch_lightning, train; raise ValueError('late')"
    later.command = ("-c", code, *later.command[1:])
    for program, end in zip(programs, _ENDS.values()):
        program.start(END=end)
    assert killed.wait().code == -9
    assert not list(killed.folder.rglob("report.html"))
    killed.start(END="")

    assert raises.wait().code == 1
    page = page_of(raises)
    assert "raises failed" in page.shown
    assert "RuntimeError: no <i>way</i>, my_password=*** (on algo-1; at " in page.shown
    assert (raises.folder / "output" / "failure").read_text() in page.shown
    # The failure file and the traceback come first.
    assert raises.output.index("Traceback") < raises.output.index("Wrote the report of the fit")
    assert "model" not in page.headings

    assert stopped.wait().code == 143
    page, output = page_of(stopped), stopped.output
    assert "stopped stopped" in page.shown
    assert "12 optimizer steps" in page.shown
    assert "SIGTERM received" in page.shown
    for row in (["global_step", "12"], ["ended", "False"], ["stopped_by", "SIGTERM received"]):
        assert row in page.rows
    assert output.index("Saved ") < output.index("Exported ") < output.index("Wrote the report of the fit")

    assert killed.wait().code == 0
    page = page_of(killed)
    assert "killed completed 3 epochs, 24 optimizer steps" in page.shown
    assert "restarted once" in page.shown
    starts = [[os.path.basename(row[1]), row[2]] for row in page.rows if len(row) == 4 and row[1] != "resumed from"]
    # Killed in the hook of step 12, before that step was saved.
    assert starts == [["from scratch", "0"], ["step-11.ckpt", "11"]]
    assert page.values["val_loss"][3] == "3"
    assert "model" in page.headings
    assert ["ended", "True"] in page.rows
    assert "stopped_by" not in dict(row for row in page.rows if len(row) == 2)
    assert any("trainer.default_root_dir = " in row[0] for row in page.rows)

    assert later.wait().code == 1
    assert "After the fit had completed: ValueError: late" in page_of(later).shown
