import json
import re
from dataclasses import replace

import pytest

from lightning_sm import TrainingJob
from lightning_sm._observe import report_writer as writer
from lightning_sm._observe.history import Attempt, History
from lightning_sm._observe.report import Outcome, rows_of_export
from lightning_sm._observe.report_writer import ReportWriter, version_of_file
from tests.observe.made_up import Page, report

JOB = TrainingJob()


def job_with(failure):
    return replace(JOB, failure_file=str(failure))


@pytest.fixture(autouse=True)
def _no_writers(monkeypatch):
    """What a test leaves is not written when pytest ends."""
    monkeypatch.setattr(writer, "_writers", {"": None})


def shown(path):
    return Page(path.read_text(encoding="utf-8")).shown


def test_a_failure_that_is_known_later_is_shown(tmp_path):
    path, failure = tmp_path / "report.html", tmp_path / "failure"
    written = ReportWriter(str(path), report(), job_with(failure))
    written.complete()
    assert "completed" in shown(path)
    failure.write_text("ValueError: <later>")
    written.complete()
    assert "failed" in shown(path)
    assert "After the fit had completed: ValueError: <later>" in shown(path)


def test_the_jobs_reason_replaces_that_of_the_fit(tmp_path):
    path, failure = tmp_path / "report.html", tmp_path / "failure"
    failure.write_text("KeyError: 'x' (rank 1 on algo-2)")
    made = report(outcome=Outcome.FAILED, reason="Lost the connection")
    ReportWriter(str(path), made, job_with(failure)).complete()
    assert "KeyError: 'x' (rank 1 on algo-2)" in shown(path)
    assert "Lost the connection" not in shown(path)


def test_a_reason_from_before_the_fit_is_not_shown(tmp_path):
    path, failure = tmp_path / "report.html", tmp_path / "failure"
    failure.write_text("old")
    made = report(outcome=Outcome.FAILED, reason="its own")
    ReportWriter(str(path), made, job_with(failure), version_of_file(str(failure))).complete()
    assert "its own" in shown(path)


def test_secrets_are_redacted_everywhere(tmp_path, opt_ml):
    opt_ml.host("algo-1").hyperparameters(api_token="hunter2-hunter2")
    job = TrainingJob.resolve(opt_ml.environ())
    rows = (("url", "https://me:hunter2-hunter2@host"), ("other", "is hunter2-hunter2"))
    path = tmp_path / "report.html"
    fields = {"job": rows, "export": rows, "topology": rows, "settings": ("model.key = hunter2-hunter2 ← x",)}
    ReportWriter(str(path), report(reason="no hunter2-hunter2", **fields), job).complete()
    assert "hunter2" not in path.read_text(encoding="utf-8")
    assert "model.key = *** ← x" in shown(path)


def test_values_whose_names_say_that_they_are_secrets(tmp_path):
    description = {
        "file": "model.pt",
        "hparams": {
            "api_key": "plain-enough-1",
            "password": "two words of it",
            "auth": {"password": "nested-1"},
            "lr": 3,
        },
        "details": {"client_secret": "plain-enough-2", "max_tokens": 77777},
    }
    (tmp_path / "model.json").write_text(json.dumps(description))
    recorded = History()
    recorded.add_attempt(Attempt(0.0))
    recorded.add_attempt(Attempt(0.0, "s3://me:plain-enough-5@host/x.ckpt"))
    value = report(
        recorded,
        export=rows_of_export(str(tmp_path / "model.json")),
        settings=("model.password = plain-enough-3", "trainer.logger.init_args.api_key = plain-enough-4 ← config"),
    )
    path = tmp_path / "report.html"
    ReportWriter(str(path), value, TrainingJob()).complete()
    page = path.read_text(encoding="utf-8")
    assert not [secret for secret in ("plain-enough", "two words", "nested-1") if secret in page]
    assert {"hparams.api_key", "hparams.password", "***", "77777", "hparams.lr"} <= set(re.split("[<>]", page))
