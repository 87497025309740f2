"""A directory, local or at a URL: of fsspec's memory file system, and of a real S3 server on this machine."""

import os
import resource
import time

import fsspec
import pytest

from lightning_sm._resume.record import SavedFile
from lightning_sm._resume.storage import Storage, check_url, forget_systems, is_remote
from lightning_sm.errors import CheckpointError
from tests.helpers.s3 import FailingProxy


@pytest.fixture(scope="module", params=["directory", "memory", pytest.param("s3", marks=pytest.mark.full)])
def kind(request):
    """A kind of directory; its server is started before the test."""
    if request.param == "s3":
        request.getfixturevalue("s3_of_module")
    return request.param


@pytest.fixture
def storage(kind, tmp_path):
    url = {"directory": str(tmp_path / "files"), "memory": f"memory://{tmp_path.name}/job/"}
    yield Storage(url.get(kind, f"s3://logs/{tmp_path.name}/"))
    if kind == "memory":
        fsspec.filesystem("memory").rm(f"/{tmp_path.name}", recursive=True)


@pytest.fixture(autouse=True)
def other_endpoints_are_forgotten():
    yield
    forget_systems()


@pytest.mark.parametrize(
    ("url", "problem", "hint"),
    [
        ("gs://bucket/a", "gs://bucket/a is neither", "s3://BUCKET/PREFIX"),
        ("s3://", "s3:// is neither", "s3://BUCKET/PREFIX"),
        ("s3://user:pw@bucket/a", "is neither", "s3://BUCKET/PREFIX"),
        ("file:///data", "is neither a local directory nor", "or a local directory"),
        ("s3://bucket/run-*/a", "is neither", "without *?#[]"),
        ("s3://bucket/run[1]", "is neither", "without *?#[]"),
    ],
)
def test_other_urls_are_refused(url, problem, hint):
    with pytest.raises(CheckpointError, match=problem) as caught:
        check_url(url)
    assert hint in str(caught.value)


def test_without_s3fs_the_error_says_what_to_install(monkeypatch):
    import importlib.util

    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "s3fs" else find(name))
    with pytest.raises(CheckpointError, match=r"needs s3fs.*lightning-sm\[s3fs\]"):
        check_url("s3://bucket/a")


def test_what_is_written_is_listed_read_and_removed(storage):
    assert (storage.names(), storage.files()) == ([], [])
    for name in ("a.ckpt", "b.ckpt/x", "b.ckpt/sub/y", "c"):
        directory, _, base = f"{storage.url}/{name}".rpartition("/")
        Storage(directory).write(base, b"0123456789")
    assert storage.names() == ["a.ckpt", "b.ckpt", "c"]
    assert [file.name for file in storage.files("b.ckpt")] == ["b.ckpt/sub/y", "b.ckpt/x"]
    assert storage.files("a.ckpt") == [SavedFile("a.ckpt", 10)]
    assert len(storage.files()) == 4
    assert storage.read("b.ckpt/x") == b"0123456789"
    with pytest.raises(FileNotFoundError):
        storage.read("nothing")
    for name in ("a.ckpt", "b.ckpt", "nothing"):
        storage.remove(name)
    assert storage.names() == ["c"]


def test_upload_and_download_give_the_same_bytes(storage, tmp_path, monkeypatch):
    monkeypatch.setattr("lightning_sm._resume.storage._CHUNK", 1000)
    content = os.urandom(20_007)
    (tmp_path / "up").write_bytes(content)
    if is_remote(storage.url):
        storage.upload(str(tmp_path / "up"), "x.ckpt")
    else:
        storage.write("x.ckpt", content)
    storage.download(SavedFile("x.ckpt", len(content)), str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == content
    with pytest.raises(FileNotFoundError):
        storage.download(SavedFile("y.ckpt", 5), str(tmp_path / "down"))


def test_an_error_of_the_local_disk_is_not_the_storage_s(tmp_path):
    memory = Storage("memory://disk")
    memory.write("a", b"1" * 2**20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            memory.download(SavedFile("a", 2**20), str(tmp_path / "a"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.full
def test_s3_takes_and_returns_large_files(s3_of_module, tmp_path):
    content = os.urandom(120 * 1024**2 + 3)  # a multipart upload
    (tmp_path / "up").write_bytes(content)
    storage = Storage("s3://logs/large")
    storage.upload(str(tmp_path / "up"), "x.ckpt")
    storage.download(SavedFile("x.ckpt", len(content)), str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == content
    for key in ("large/../x.ckpt", "large/folder/"):
        s3_of_module.client.put_object(Bucket="logs", Key=key, Body=b"")
    assert [file.name for file in storage.files()] == ["x.ckpt"]


@pytest.mark.full
def test_what_lightning_sees_is_not_older_than_the_upload(s3_of_module):
    """Lightning lists the directory first, and s3fs remembers listings."""
    system, root = fsspec.core.url_to_fs("s3://logs/cached")
    storage = Storage("s3://logs/cached")
    storage.write("a.ckpt", b"1")
    assert system.ls(root, detail=False) == ["logs/cached/a.ckpt"]
    storage.write("b.ckpt", b"1")
    assert system.exists(f"{root}/b.ckpt")
    storage.remove("a.ckpt")
    assert not system.exists(f"{root}/a.ckpt")


@pytest.mark.full
@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda storage: storage.files(), "cannot be listed"),
        (lambda storage: storage.names(), "cannot be listed"),
        (lambda storage: storage.write("a", b""), "does not take a"),
        (lambda storage: storage.read("a"), "does not return a"),
    ],
)
def test_a_missing_bucket_is_named(s3_of_module, action, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        action(Storage("s3://no-such-bucket/x"))
    assert "HINT: Create the bucket" in str(caught.value)


@pytest.mark.full
def test_a_server_that_never_answers_is_an_error_soon(s3_of_module, monkeypatch):
    proxy = FailingProxy(s3_of_module.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setattr(Storage, "max_seconds", 1.0)
    monkeypatch.setattr("lightning_sm._resume.storage._LEAST_BYTES_PER_SECOND", 1e10)
    proxy.status = 0
    storage = _new_storage("s3://logs/silent")
    for call in (
        storage.files,
        storage.names,
        lambda: storage.read("x"),
        lambda: storage.write("x", b""),
        lambda: storage.upload(__file__, "x"),
        lambda: storage.download(SavedFile("x", 5), os.devnull),
    ):
        started = time.monotonic()
        with pytest.raises(CheckpointError, match=r"(Timeout|Connection)Error.*HINT: Check the bucket's region"):
            call()
        assert time.monotonic() - started < 10
    proxy.close()


@pytest.mark.full
def test_missing_credentials_are_named(s3_of_module, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(CheckpointError, match=r"NoCredentialsError.*HINT: In a job its role"):
        _new_storage("s3://logs/x").files()


def _new_storage(url):
    """A storage whose file system reads the environment again."""
    forget_systems()
    return Storage(url)


def test_an_unknown_kind_of_url_is_a_checkpoint_error():
    with pytest.raises(CheckpointError, match="Protocol not known"):
        Storage("unknown://a").files()
