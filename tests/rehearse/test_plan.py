"""What a request becomes on this machine: checks, files, variables and commands, as values."""

import importlib.util
import re
import socket
import sys
import threading
from pathlib import Path
from typing import Callable, List

import pytest

from lightning_sm.rehearse import Isolation, RehearsalError, _hyperpodrun, rehearse
from lightning_sm.rehearse import _checks as checks
from lightning_sm.rehearse._container import prepare_container
from lightning_sm.rehearse._network import host_commands, shaping_commands
from lightning_sm.rehearse._plan import RehearsalFolder, RehearsalPlan, create_plan
from tests.helpers.rehearsal import cli_request


@pytest.fixture
def plan(source: Path, tmp_path: Path) -> Callable[..., RehearsalPlan]:
    def run(*arguments: object, isolation: Isolation = "netns", **variables: str) -> RehearsalPlan:
        return create_plan(cli_request(source, *arguments, "plain.py"), isolation, variables, RehearsalFolder(tmp_path))

    return run


@pytest.mark.parametrize("module", ["mpi4py", "sagemaker_training"])
def test_what_is_missing_names_the_extra(source: Path, monkeypatch: pytest.MonkeyPatch, module: str) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else object())
    with pytest.raises(
        RehearsalError, match=rf"{module} is not installed.*HINT: pip install 'lightning-sm\[rehearse\]'"
    ):
        checks.check_software(cli_request(source, "--distribution", "mpi", "plain.py"))


@pytest.mark.parametrize("flag", ["--output-dir", "--checkpoint-dir"])
def test_a_folder_that_cannot_be_written_is_refused_before_the_job_runs(source: Path, flag: str) -> None:
    with pytest.raises(RehearsalError, match=rf"{flag} .*/plain.py/x cannot be written: "):
        rehearse(cli_request(source, flag, source / "plain.py" / "x", "plain.py"))


_TWO_GROUPS = ["--instance-groups", "a=1:ml.m5.large,b=1:ml.m5.large"]


@pytest.mark.parametrize(
    ("arguments", "isolation", "told"),
    [
        (["--distribution", "mpi"], "loopback", "ssh on port 22.*HINT.*netns"),
        (["--distribution", "mpi"], "userns", "sshd needs real users"),
        (["--bandwidth", "1gbit"], "loopback", "network of their own"),
        ([*_TWO_GROUPS, "--distribution", "torch_distributed"], "loopback", "world of its own"),
    ],
)
def test_an_isolation_that_does_not_fit(source: Path, arguments: List[str], isolation: str, told: str) -> None:
    with pytest.raises(RehearsalError, match=told):
        checks.choose_isolation(cli_request(source, "--isolation", isolation, *arguments, "plain.py"))


def test_loopback_hosts_cannot_meet_at_a_port_that_is_in_use(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a second rehearsal would join the world of the first."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        monkeypatch.setattr(checks, "DEFAULT_PORT", port)
        arguments = ("--isolation", "loopback", "--distribution", "torch_distributed", "plain.py")
        with pytest.raises(RehearsalError, match=f"port {port}, at which the hosts would meet, is in use"):
            checks.choose_isolation(cli_request(source, *arguments))
    assert checks.choose_isolation(cli_request(source, *arguments)) == "loopback"


def test_loopback_hosts_have_addresses_in_the_order_of_any_names(plan: Callable[..., RehearsalPlan]) -> None:
    for names, expected in (("algo-10,algo-2", ("127.0.0.2", "127.0.0.1")), ("head,tail", ("127.0.0.1", "127.0.0.2"))):
        made = plan("--hosts", 2, "--host-names", names, isolation="loopback")
        assert made.request.groups[0].hosts == expected


def test_a_stray_rank_stays_out_and_the_requests_path_comes_first(plan: Callable[..., RehearsalPlan]) -> None:
    found = plan("--env", "PATH=/mine", RANK="3", SM_HOSTS="x", AWS_REGION="eu", PATH="/p").variables("algo-1")
    assert {"RANK", "SM_HOSTS"}.isdisjoint(found)
    assert (found["AWS_REGION"], found["HOME"]) == ("eu", "/root")
    folders = found["PATH"].split(":")
    assert folders[0] == "/mine"
    assert {"/p", str(Path(sys.executable).parent)} <= set(folders)


def test_only_a_host_with_files_of_its_own_removes_any(plan: Callable[..., RehearsalPlan], tmp_path: Path) -> None:
    # Outside its overlays a rootless host sees the files of this machine.
    made = plan(isolation="userns")
    assert prepare_container(made, "algo-1")[-1] == str(tmp_path / "hosts" / "algo-1" / "start.sh")
    script = (tmp_path / "hosts" / "algo-1" / "start.sh").read_text()
    assert ".ssh" not in script
    removing = [line for line in script.splitlines() if re.search(r"\brm\b|--remove-destination", line)]
    assert len(removing) == 2
    assert "/tmp/done.*" in removing[0]
    assert removing[1].endswith(f"{tmp_path}/hosts/algo-1/files/etc {tmp_path}/hosts/algo-1/image")


def test_network_commands() -> None:
    commands = [" ".join(each) for each in host_commands("algo-1", "10.0.0.2", latency=0.0005, bandwidth=10**6)]
    assert "ip link add eth0 type veth peer name palgo1 netns 1" in commands
    assert "nsenter --net=/proc/1/ns/net ip link set palgo1 master bridge0 up" in commands
    assert commands[-2] == "tc qdisc add dev eth0 root handle 1: netem delay 0.5ms limit 100000"
    assert "parent 1:1 handle 10: tbf rate 1000000bit" in commands[-1]
    (command,) = shaping_commands(None, 10**9)
    assert " ".join(command) == (
        "tc qdisc add dev eth0 root handle 10: tbf rate 1000000000bit burst 1250000 latency 100ms"
    )
    # The kernel takes 15 characters.
    assert all(len(each) < 16 for each in host_commands("algo-100000000000", "10.0.0.2")[1] if "palgo" in each)


@pytest.mark.parametrize("answer", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n{"])
def test_an_agent_that_ends_while_it_is_asked_gives_no_answer(monkeypatch: pytest.MonkeyPatch, answer: bytes) -> None:
    def end(server: socket.socket) -> None:
        with server.accept()[0] as asked:
            asked.recv(1000)
            asked.sendall(answer)

    with socket.create_server(("127.0.0.1", 0)) as server:
        monkeypatch.setattr(_hyperpodrun, "_SERVER", f"http://127.0.0.1:{server.getsockname()[1]}")
        threading.Thread(target=end, args=(server,)).start()
        assert _hyperpodrun._ask("/status") is None
