"""The doctor on machines with odd files, limits and names: it answers soon, and blames nothing that is right."""

import errno
import os
import socket
import subprocess
import sys
import threading
import time

import pytest

from lightning_sm._doctor import Finding, Status, network_checks, storage_checks
from lightning_sm._doctor.finding import run_checks
from tests.doctor.traps_of_jobs import _channel

OK, WARNING, ERROR = Status.OK, Status.WARNING, Status.ERROR


def test_links_in_a_channel(host):
    folder = _channel(host, "File", "a.txt")
    (folder / "broken").symlink_to("nowhere")
    (folder / "loop").symlink_to("loop")
    (folder / "again").symlink_to(".")
    statuses = {each.status: each.text for each in host.findings("channel training")}
    assert set(statuses) == {OK, WARNING}
    assert statuses[OK].startswith("File, 4 files, ")
    assert statuses[WARNING].startswith("a part of it cannot be read: ")


def test_a_folder_of_a_channel_that_may_not_be_read(host, monkeypatch):
    folder = _channel(host, "File", "a.txt")
    (folder / "lost+found").mkdir()
    scan = os.scandir

    def scandir(path):
        if str(path).endswith("lost+found"):
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return scan(path)

    monkeypatch.setattr(os, "scandir", scandir)
    found = host.findings("channel training")
    assert [each.status for each in found] == [OK, WARNING]
    assert "lost+found: Permission denied" in found[1].text


def test_many_slow_channels(host, monkeypatch):
    names = [f"c{number}" for number in range(20)]
    host.opt_ml.write("inputdataconfig.json", {name: {"TrainingInputMode": "FastFile"} for name in names})
    given, count = [], storage_checks._count
    for name in names:
        folder = host.opt_ml.base / "input" / "data" / name
        folder.mkdir(parents=True)
        (folder / "a.txt").touch()

    def count_none(path, seconds):
        given.append(seconds)
        return count(path, -1.0)

    monkeypatch.setattr(storage_checks, "_count", count_none)
    found = tuple(storage_checks._channels(host.machine))
    assert {(each.status, "at least 1 file" in each.text) for each in found} == {(OK, True)}
    assert sum(given) == pytest.approx(storage_checks._WALK_SECONDS)


@pytest.mark.parametrize(
    "name", ["output/failure", "checkpoints/train-0a1b2c", "code/train.py", "code/requirements.txt"]
)
def test_a_pipe_in_place_of_a_file(host, name):
    path = host.opt_ml.base / name
    path.parent.mkdir(exist_ok=True)
    os.mkfifo(path)
    host.opt_ml.hyperparameters(sagemaker_program="train.py", flag=True)
    began = time.monotonic()
    found = host.findings()
    assert time.monotonic() - began < 8
    assert not [each for each in found if "could not be examined" in each.text]


def test_a_model_directory_that_is_a_broken_link(host):
    (host.opt_ml.base / "model").symlink_to("nowhere")
    assert [each.status for each in host.findings("model directory")] == [ERROR]


def test_no_thread_can_be_started(monkeypatch, host):
    def start(self):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", start)
    found = run_checks({"One": (lambda _: [Finding("a", OK, "b")],)}, host.machine)
    assert found == {"One": (Finding("a", OK, "b"),)}


def test_few_threads_and_little_memory(host, tmp_path):
    program = "import resource; resource.setrlimit(resource.RLIMIT_AS, (600 << 20,) * 2); "
    program += "from lightning_sm._doctor import main; raise SystemExit(main(['--json']))"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1), done.stderr
    assert '"findings"' in done.stdout
    assert "Traceback" not in done.stderr


def test_a_name_server_that_does_not_answer(host, monkeypatch):
    monkeypatch.setattr(network_checks, "_NAME_TIMEOUT", 0.2)

    def getaddrinfo(*_, **__):
        time.sleep(2)
        raise OSError

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    host.opt_ml.host("algo-2", *(f"algo-{number}" for number in range(1, 101)))
    began = time.monotonic()
    found = {check: tuple(run(host.machine)) for check, run in zip("np", network_checks.CHECKS)}
    assert time.monotonic() - began < 2
    assert [each.status for each in found["n"]] == [WARNING]
    assert "100 of 100 do not resolve yet" in found["n"][0].text
    assert "does not resolve yet" in found["p"][0].text


def test_lines_about_a_hundred_hosts_are_short(host, monkeypatch):
    monkeypatch.setattr(network_checks, "_NAME_TIMEOUT", 0.2)
    host.opt_ml.host("algo-1", *(f"algo-{number}" for number in range(1, 101)))
    host.environ.update({f"OMPI_COMM_WORLD_{name}": "0" for name in ("RANK", "LOCAL_RANK")})
    host.environ.update({f"OMPI_COMM_WORLD_{name}": "1" for name in ("SIZE", "LOCAL_SIZE")})
    assert max(len(each.text) for each in host.findings()) < 400


def test_loopback_of_version_six(host, monkeypatch):
    addresses = {"algo-1": "2001:db8::1", "algo-2": "::1"}
    monkeypatch.setattr(socket, "getaddrinfo", lambda name, *_, **__: [(0, 0, 0, "", (addresses.get(name, ""), 0))])
    host.opt_ml.host("algo-1", "algo-1", "algo-2")
    assert [each.status for each in host.findings("names of hosts")] == [ERROR]


def test_requirements_with_many_problems(host):
    (host.opt_ml.base / "code").mkdir()
    lines = [f"{name}{extra}" for extra in range(500) for name in ("torchvision", "torch>=", "other==")]
    (host.opt_ml.base / "code" / "requirements.txt").write_text("\n".join(["torchvision"] * 900 + lines))
    found = host.findings("requirements.txt")
    assert len(found) == 6
    assert found[-1].text == "496 more lines like these."


def test_caches_that_a_program_writes_into_a_channel_do_not_count(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    before = storage_checks.list_files(str(tmp_path))
    now = time.time() + 0.001
    while time.time() < now + 0.02:
        (tmp_path / "cache.lock").write_text("")
    assert storage_checks.list_files(str(tmp_path)) != before
    assert storage_checks.list_files(str(tmp_path), now) == before


def test_a_main_host_that_does_not_know_its_own_name(host):
    host.opt_ml.host("missing.invalid")
    found = host.findings("main port")
    assert [each.status for each in found] == [OK, WARNING]
    assert "missing.invalid" in found[1].text
    assert "does not resolve on this main host itself" in found[1].text
    host.opt_ml.host("localhost")
    assert [each.status for each in host.findings("main port")] == [OK]
