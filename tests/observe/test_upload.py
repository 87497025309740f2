"""Uploads of directories, to fsspec's file system in memory, which fails where a test wants it to."""

import importlib
import time
from typing import ClassVar

import fsspec
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from lightning_sm import _auto, trainer_settings
from lightning_sm._lightning import Namespace
from lightning_sm._observe.upload import DirectoryUpload, check_packages
from lightning_sm.callbacks import callback_class
from lightning_sm.errors import LoggerError, OptionError
from tests.helpers.processes import until


class FailingFileSystem(MemoryFileSystem):
    protocol = "failing"
    store: ClassVar = {}
    pseudo_dirs: ClassVar = [""]
    error = None
    puts: ClassVar = []

    @classmethod
    def _strip_protocol(cls, path):
        return super()._strip_protocol(path.replace("failing://", "memory://"))

    def put_file(self, lpath, rpath, **kwargs):
        cls = type(self)
        cls.puts.append(rpath.rpartition("/")[2])
        if cls.error is not None:
            raise cls.error
        super().put_file(lpath, rpath, **kwargs)


fsspec.register_implementation("failing", FailingFileSystem, clobber=True)


@pytest.fixture
def remote():
    FailingFileSystem.store.clear()
    FailingFileSystem.error, FailingFileSystem.puts = None, []
    return FailingFileSystem


@pytest.fixture
def logs(tmp_path):
    folder = tmp_path / "logs"
    (folder / "net" / "version_0").mkdir(parents=True)
    (folder / "net" / "version_0" / "events.0").write_bytes(b"one")
    return folder


def content(remote, name="net/version_0/events.0"):
    found = remote.store.get(f"/runs/{name}")
    return None if found is None else found.getvalue()


def make(logs, interval=0.05, flush=lambda: None):
    return DirectoryUpload({str(logs): "failing://runs/"}, interval, flush)


def test_what_changes_is_uploaded_and_nothing_else(remote, logs):
    upload = make(logs)
    upload.start()
    upload.start()
    until(lambda: content(remote) == b"one")
    with open(logs / "net" / "version_0" / "events.0", "ab") as file:
        file.write(b" two")
    (logs / "net" / "version_0" / "hparams.yaml").write_text("lr: 1")
    (logs / "net" / "version_0" / "best.ckpt").symlink_to(__file__)
    until(lambda: content(remote) == b"one two" and content(remote, "net/version_0/hparams.yaml") == b"lr: 1")
    time.sleep(0.3)
    assert remote.puts == ["events.0", "events.0", "hparams.yaml"]
    (logs / "net" / "version_0" / "last").write_text("end")
    upload.stop(10)
    assert content(remote, "net/version_0/last") == b"end"


def test_several_trainers_of_a_program_upload_a_file_once(remote, logs):
    uploads = [make(logs, 60), make(logs, 60)]
    for upload in uploads:
        upload.start()
        upload.stop(10)
    (logs / "later").write_text("x")
    for upload in uploads:
        upload._at_exit()
    assert remote.puts == ["events.0", "later"]


def test_one_url_that_fails_does_not_stop_another(remote, logs, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    (other / "events").write_text("x")
    remote.error = OSError("down")
    upload = DirectoryUpload({str(logs): "failing://runs", str(other): "memory://there"}, 60)
    upload.start()
    upload.stop(10)
    assert fsspec.filesystem("memory").cat("/there/events") == b"x"


def test_a_missing_package_names_the_extra(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(LoggerError, match=r"s3://bucket/x: boto3 cannot be imported.*lightning-sm\[s3\]"):
        check_packages("s3://bucket/x")


NO_BUCKET = r"names no bucket of S3.*s3://BUCKET/PREFIX"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        *((f"s3://{rest}", NO_BUCKET) for rest in ("", "/runs", "bucket/x?versionId=3", "me:hunter2pw@bucket/x")),
        ("nowhere://x", r"nowhere://x: .*HINT: Use an s3:// URL"),
    ],
)
def test_urls_that_nothing_can_be_uploaded_to(url, message):
    with pytest.raises(LoggerError, match=message) as caught:
        check_packages(url)
    assert "hunter2pw" not in str(caught.value)


def test_an_interval_that_is_none():
    with pytest.raises(OptionError, match=r"sagemaker.upload_every: 'soon' is not a duration.*HINT"):
        callback_class(Namespace("pytorch_lightning"), "TensorBoardUpload")({"a": "memory://a"}, interval="soon")


@pytest.mark.parametrize("ready_made", [False, True])
def test_folds_of_a_script_have_versions_of_their_own(container, monkeypatch, ready_made):
    loggers = pytest.importorskip("pytorch_lightning.loggers", reason="pytorch_lightning is not installed")
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    monkeypatch.setenv("TRAINING_JOB_NAME", "job-1")
    versions = []
    for _fold in range(2):
        options = {} if ready_made else {"output_dir": "memory://out"}
        more = {"logger": loggers.TensorBoardLogger("memory://runs")} if ready_made else {}
        arguments = trainer_settings(sagemaker=options, **more)
        versions.append(arguments["logger"].version)
        assert str(container.base) in arguments["logger"].log_dir
    assert versions == ["job-1", "job-1-2"]


def test_a_program_without_a_line_uploads_too(container):
    loggers = pytest.importorskip("pytorch_lightning.loggers", reason="pytorch_lightning is not installed")
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    trainer_class = Namespace("pytorch_lightning").module().Trainer
    trainer = trainer_class(accelerator="cpu", logger=loggers.TensorBoardLogger("memory://runs"))
    _auto._fit(lambda trainer: None, trainer)
    (upload,) = (each for each in trainer.callbacks if type(each).__name__ == "TensorBoardUpload")
    assert upload.targets == {trainer.logger.save_dir: "memory://runs"}
    assert str(container.base) in trainer.logger.log_dir
