"""Uploads of directories, to fsspec's file system in memory, which fails where a test wants it to."""

import importlib
import time

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from pytorch_lightning import Trainer
from pytorch_lightning.loggers import TensorBoardLogger

from lightning_sm import _auto, trainer_settings
from lightning_sm._observe.upload import DirectoryUpload, check_packages
from lightning_sm.errors import LoggerError
from tests.helpers.processes import until


@pytest.fixture
def puts(monkeypatch):
    """The names of the files that are uploaded to an empty file system, whose part below ``down`` fails."""
    names, put_file = [], MemoryFileSystem.put_file

    def put_and_note(self, lpath, rpath, **kwargs):
        if "/down/" in rpath:
            raise OSError("down")
        names.append(rpath.rpartition("/")[2])
        put_file(self, lpath, rpath, **kwargs)

    monkeypatch.setattr(MemoryFileSystem, "put_file", put_and_note)
    MemoryFileSystem.store.clear()
    return names


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    (folder / "net" / "version_0").mkdir(parents=True)
    (folder / "net" / "version_0" / "events.0").write_bytes(b"one")
    return folder


def content(name="net/version_0/events.0"):
    found = MemoryFileSystem.store.get(f"/runs/{name}")
    return None if found is None else found.getvalue()


def make(logs, interval=0.05):
    return DirectoryUpload({str(logs): "memory://runs/"}, interval)


def test_what_changes_is_uploaded_and_nothing_else(puts, logs):
    upload = make(logs)
    upload.start()
    upload.start()
    until(lambda: content() == b"one")
    with open(logs / "net" / "version_0" / "events.0", "ab") as file:
        file.write(b" two")
    (logs / "net" / "version_0" / "hparams.yaml").write_text("lr: 1")
    (logs / "net" / "version_0" / "best.ckpt").symlink_to(__file__)
    until(lambda: content() == b"one two" and content("net/version_0/hparams.yaml") == b"lr: 1")
    time.sleep(0.3)
    assert puts == ["events.0", "events.0", "hparams.yaml"]
    (logs / "net" / "version_0" / "last").write_text("end")
    upload.stop()
    assert content("net/version_0/last") == b"end"


def test_several_trainers_of_a_program_upload_a_file_once(puts, logs):
    uploads = [make(logs, 60), make(logs, 60)]
    for upload in uploads:
        upload.start()
        upload.stop()
    (logs / "later").write_text("x")
    for upload in uploads:
        upload._at_exit()
    assert puts == ["events.0", "later"]


def test_one_url_that_fails_does_not_stop_another(puts, logs, lines):
    targets = {str(logs): "memory://me:hunter2pw@x/down/", str(logs / "net"): "memory://runs"}
    upload = DirectoryUpload(targets, 60)
    upload.start()
    upload.stop()
    assert content("version_0/events.0") == b"one"
    assert [line for line in lines if "memory://***@x/down" in line]
    assert "hunter2pw" not in str(lines)


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoggerError, match=r"s3://bucket/x: boto3 cannot be imported.*lightning-sm\[s3\]"):
        check_packages("s3://bucket/x")


NO_BUCKET = r"names no bucket of S3.*s3://BUCKET/PREFIX"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *((f"s3://{rest}", NO_BUCKET) for rest in ("", "/runs", "bucket/x?versionId=3", "me:hunter2pw@bucket/x")),
        ("nowhere://me:hunter2pw@x", r"nowhere://\*\*\*@x: .*HINT: Use an s3:// URL"),
    ],
)
def test_urls_that_nothing_can_be_uploaded_to(url, message):
    with pytest.raises(LoggerError, match=message) as caught:
        check_packages(url)
    assert "hunter2pw" not in str(caught.value)


@pytest.mark.parametrize("ready_made", [False, True])
def test_folds_of_a_script_have_versions_of_their_own(container, monkeypatch, ready_made):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    versions = []
    for _fold in range(2):
        options = {} if ready_made else {"output_dir": "memory://out"}
        more = {"logger": TensorBoardLogger("memory://runs")} if ready_made else {}
        arguments = trainer_settings(sagemaker=options, **more)
        versions.append(arguments["logger"].version)
        assert str(container.base) in arguments["logger"].log_dir
    assert versions == ["job-1", "job-1-2"]


def test_a_program_without_a_line_uploads_too(container):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    trainer = Trainer(accelerator="cpu", logger=TensorBoardLogger("memory://runs"))
    _auto._fit(lambda trainer: None, trainer)
    (upload,) = (each for each in trainer.callbacks if hasattr(each, "targets"))  # type: ignore[attr-defined]
    assert upload.targets == {trainer.logger.save_dir: "memory://runs"}
    assert str(container.base) in trainer.logger.log_dir
