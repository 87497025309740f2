"""A directory at a URL: here of fsspec's memory file system, and of a real S3 server on this machine."""

import os
import time
from unittest import mock

import pytest

from lightning_sm._resume import storage as storage_module
from lightning_sm._resume.record import CorruptedError
from lightning_sm._resume.storage import Storage, StoredFile, check_url, forget_systems, is_remote, is_s3
from lightning_sm.errors import CheckpointError
from tests.helpers.s3 import FailingProxy, s3_server


@pytest.fixture
def memory(request):
    import fsspec

    url = f"memory://{request.node.name}"
    yield Storage(f"{url}/job/")
    fsspec.filesystem("memory").rm(f"/{request.node.name}", recursive=True)


@pytest.fixture(scope="module")
def s3():
    pytest.importorskip("s3fs")
    forget_systems()
    with s3_server() as server, mock.patch.dict(os.environ, server.variables):
        yield server
    forget_systems()


@pytest.fixture(autouse=True)
def other_endpoints_are_forgotten(monkeypatch):
    yield
    forget_systems()


@pytest.mark.parametrize("path", ["s3://b/p", "memory://p"])
def test_urls_are_remote(path):
    assert is_remote(path)
    assert not is_remote("/opt/ml/checkpoints")
    assert not is_remote(None)


def test_only_s3_is_s3():
    assert is_s3("s3://b")
    assert not is_s3("gs://b")


@pytest.mark.services
def test_a_bucket_with_and_without_a_prefix_is_accepted():
    pytest.importorskip("s3fs")
    check_url("s3://bucket")
    check_url("s3://bucket/a/b=c")


@pytest.mark.parametrize(
    ("url", "problem", "hint"),
    [
        ("gs://bucket/a", "gs://bucket/a is neither", "s3://BUCKET/PREFIX"),
        ("s3://", "s3:// is neither", "s3://BUCKET/PREFIX"),
        ("s3://user:pw@bucket/a", "is neither", "s3://BUCKET/PREFIX"),
        ("file:///data", "local files", "without file://"),
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


def test_an_unknown_kind_of_url_is_a_checkpoint_error():
    with pytest.raises(CheckpointError, match="Protocol not known"):
        Storage("unknown://a").files()


def test_files_are_listed_at_any_depth_by_relative_name(memory):
    memory.write("a.ckpt", b"123")
    memory.write("sub/b.ckpt/meta.pt", b"45")
    assert {name: file.size for name, file in memory.files().items()} == {"a.ckpt": 3, "sub/b.ckpt/meta.pt": 2}
    assert list(memory.files("sub/b.ckpt")) == ["sub/b.ckpt/meta.pt"]
    assert memory.files("nothing") == {}


def test_a_part_of_a_file_is_read(memory):
    memory.write("a", b"0123456789")
    assert memory.read("a", 2, 5) == b"234"
    with pytest.raises(FileNotFoundError):
        memory.read("b")


def test_upload_and_download_give_the_same_bytes(memory, tmp_path):
    content = os.urandom(40 * 1024**2 + 7)  # several chunks
    (tmp_path / "up").write_bytes(content)
    memory.upload(str(tmp_path / "up"), "sub/x.ckpt")
    memory.download(memory.files()["sub/x.ckpt"], str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == content


def test_a_file_that_was_replaced_meanwhile_is_not_taken(memory, tmp_path):
    memory.write("a", b"123")
    listed = memory.files()["a"]
    memory.write("a", b"1234")
    with pytest.raises(CorruptedError, match="replaced"):
        memory.download(listed, str(tmp_path / "a"))
    memory.remove("a")
    with pytest.raises(CorruptedError, match="removed"):
        memory.download(listed, str(tmp_path / "a"))


def test_an_error_of_the_local_disk_is_not_the_storage_s(memory, tmp_path):
    resource = pytest.importorskip("resource")
    memory.write("a", b"1" * 2**20)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**19, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            memory.download(memory.files()["a"], str(tmp_path / "a"))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def test_files_and_folders_are_removed(memory):
    for name in ("a.ckpt", "b.ckpt/x", "b.ckpt/y", "c"):
        memory.write(name, b"1")
    for name in ("a.ckpt", "b.ckpt", "nothing"):
        memory.remove(name)
    assert list(memory.files()) == ["c"]
    assert memory.exists("c")
    assert not memory.exists("a.ckpt")


@pytest.mark.services
def test_s3_lists_and_replaces_objects(s3, tmp_path):
    storage = Storage("s3://logs/listed")
    assert storage.files() == {}
    assert not storage.exists("a.ckpt")
    storage.write("a.ckpt", b"123")
    first = storage.files()["a.ckpt"]
    assert first.version
    storage.write("a.ckpt", b"321")
    assert storage.files()["a.ckpt"].version != first.version
    # The same size: only the ETag tells that it is another one.
    with pytest.raises(CorruptedError, match="replaced"):
        storage.download(first, str(tmp_path / "a"))
    s3.client.put_object(Bucket="logs", Key="listed/../x.ckpt", Body=b"1")
    s3.client.put_object(Bucket="logs", Key="listed/folder/", Body=b"")
    assert list(storage.files()) == ["a.ckpt"]


@pytest.mark.services
def test_s3_takes_and_returns_large_files(s3, tmp_path):
    content = os.urandom(120 * 1024**2 + 3)  # a multipart upload
    (tmp_path / "up").write_bytes(content)
    storage = Storage("s3://logs/large")
    storage.upload(str(tmp_path / "up"), "x.ckpt")
    storage.download(storage.files()["x.ckpt"], str(tmp_path / "down"))
    assert (tmp_path / "down").read_bytes() == content


@pytest.mark.services
def test_what_lightning_sees_is_not_older_than_the_upload(s3):
    """Lightning lists the directory first, and s3fs remembers listings."""
    import fsspec

    system, root = fsspec.core.url_to_fs("s3://logs/cached")
    storage = Storage("s3://logs/cached")
    storage.write("a.ckpt", b"1")
    assert system.ls(root, detail=False) == ["logs/cached/a.ckpt"]
    storage.write("b.ckpt", b"1")
    assert system.exists(f"{root}/b.ckpt")
    storage.remove("a.ckpt")
    assert not system.exists(f"{root}/a.ckpt")


@pytest.mark.services
@pytest.mark.parametrize(
    ("action", "words"),
    [
        (lambda storage: storage.files(), "cannot be listed"),
        (lambda storage: storage.write("a", b""), "does not take a"),
        (lambda storage: storage.read("a"), "does not return a"),
    ],
)
def test_a_missing_bucket_is_named(s3, action, words):
    with pytest.raises(CheckpointError, match=words) as caught:
        action(Storage("s3://no-such-bucket/x"))
    assert "HINT: Create the bucket" in str(caught.value)


@pytest.mark.services
def test_refused_access_names_the_permissions(s3, monkeypatch):
    proxy = FailingProxy(s3.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    proxy.status = 403
    with pytest.raises(CheckpointError, match=r"cannot be listed.*HINT: The job's role needs s3:ListBucket"):
        _new_storage("s3://logs/denied").files()
    proxy.close()


@pytest.mark.services
def test_a_server_that_is_not_there_is_an_error_soon(s3, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    started = time.monotonic()
    with pytest.raises(CheckpointError, match=r"EndpointConnectionError.*HINT: Check the bucket's region"):
        _new_storage("s3://logs/gone").files()
    assert time.monotonic() - started < 60


@pytest.mark.services
def test_a_server_that_never_answers_is_an_error_soon(s3, monkeypatch):
    proxy = FailingProxy(s3.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    monkeypatch.setattr(Storage, "max_seconds", 2.0)
    proxy.status = 0
    storage = _new_storage("s3://logs/silent")
    for call in (
        storage.files,
        lambda: storage.read("x"),
        lambda: storage.exists("x"),
        lambda: storage.write("x", b""),
        lambda: storage.upload(__file__, "x"),
    ):
        started = time.monotonic()
        with pytest.raises(CheckpointError, match=r"(Timeout|Connection)Error.*HINT: Check the bucket's region"):
            call()
        assert time.monotonic() - started < 10
    proxy.close()


@pytest.mark.services
def test_a_long_upload_goes_on_while_parts_arrive_and_ends_when_none_does(s3, monkeypatch, tmp_path):
    proxy = FailingProxy(s3.port)
    monkeypatch.setenv("AWS_ENDPOINT_URL", proxy.url)
    # More than a part takes on a busy machine, and less than all take.
    monkeypatch.setattr(Storage, "max_seconds", 6.0)
    monkeypatch.setattr(storage_module, "_CHUNK", 5 * 1024**2)
    content = os.urandom(25 * 1024**2 + 1)
    (tmp_path / "large").write_bytes(content)
    storage = _new_storage("s3://logs/long")
    monkeypatch.setattr(storage._system()[0], "max_concurrency", 1)
    proxy.seconds = 1.3
    started = time.monotonic()
    storage.upload(str(tmp_path / "large"), "x")
    assert time.monotonic() - started > Storage.max_seconds
    proxy.status = 0
    monkeypatch.setattr(Storage, "max_seconds", 2.0)
    with pytest.raises(CheckpointError, match="no part of it was confirmed within 2 s"):
        storage.upload(str(tmp_path / "large"), "x")
    proxy.close()
    assert s3.client.get_object(Bucket="logs", Key="long/x")["Body"].read() == content


@pytest.mark.services
def test_missing_credentials_are_named(s3, monkeypatch, tmp_path):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    with pytest.raises(CheckpointError, match=r"NoCredentialsError.*HINT: In a job its role"):
        _new_storage("s3://logs/x").files()


def test_a_stored_file_is_a_value():
    assert StoredFile("a", 1, "e") == StoredFile("a", 1, "e")


def _new_storage(url):
    """A storage whose file system reads the environment again."""
    forget_systems()
    return Storage(url)
