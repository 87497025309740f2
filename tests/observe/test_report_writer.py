import json
import re

from lightning_sm import TrainingJob
from lightning_sm._atomic_file import replace_atomically
from lightning_sm._observe import report_writer
from lightning_sm._observe.history import Attempt, History
from lightning_sm._observe.report import Outcome, rows_of_export
from lightning_sm._observe.report_writer import ReportWriter, version_of_file
from tests.observe.made_up import Page, report


def test_a_reason_from_before_the_fit_is_not_shown(tmp_path):
    path, failure = tmp_path / "report.html", tmp_path / "failure"
    failure.write_text("old")
    made = report(outcome=Outcome.FAILED, reason="its own")
    job = TrainingJob(failure_file=str(failure))
    ReportWriter(str(path), made, job, version_of_file(str(failure))).complete()
    assert "its own" in Page(path.read_text(encoding="utf-8")).shown


def test_fits_of_two_threads_write_one_path(tmp_path, monkeypatch):
    path = str(tmp_path / "report.html")
    first, second = (ReportWriter(path, report(outcome=Outcome.COMPLETED), TrainingJob()) for _ in range(2))

    def replace_after_the_second(partial, target):
        monkeypatch.undo()
        second.complete()
        replace_atomically(partial, target)

    monkeypatch.setattr(report_writer, "replace_atomically", replace_after_the_second)
    first.complete()
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_secrets_are_redacted_everywhere(tmp_path, opt_ml):
    """Those among the hyperparameters wherever they stand, and values whose names say that they are secrets."""
    opt_ml.host("algo-1").hyperparameters(api_token="hunter2-hunter2")
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
        reason="no hunter2-hunter2",
        job=(("url", "https://me:hunter2-hunter2@host"),),
        topology=(("other", "is hunter2-hunter2"),),
        export=rows_of_export(str(tmp_path / "model.json")),
        settings=("model.password = plain-enough-3", "trainer.logger.init_args.api_key = plain-enough-4 ← config"),
    )
    path = tmp_path / "report.html"
    ReportWriter(str(path), value, TrainingJob.resolve(opt_ml.environ())).complete()
    page = path.read_text(encoding="utf-8")
    assert not [secret for secret in ("plain-enough", "two words", "nested-1", "hunter2") if secret in page]
    assert {"hparams.api_key", "hparams.password", "***", "77777", "hparams.lr"} <= set(re.split("[<>]", page))
