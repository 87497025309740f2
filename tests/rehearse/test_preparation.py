"""What a request becomes on this machine: checks, files, variables and commands, as values."""

import importlib.util
import os
import shutil
import socket
import sys
from pathlib import Path
from typing import List

import pytest

from lightning_sm.rehearse import Isolation, RehearsalError
from lightning_sm.rehearse._checks import check_entry_point, check_port, check_software, choose_isolation
from lightning_sm.rehearse._command import read_bandwidth, read_seconds
from lightning_sm.rehearse._container import other_mounts
from lightning_sm.rehearse._network import addresses, hosts_file
from lightning_sm.rehearse._plan import RehearsalFolder, config_files, container_environment, create_plan
from lightning_sm.rehearse._storage import fetch_checkpoints, send_checkpoints
from tests.helpers.rehearsal import cli_request as request


class TestChecks:
    @pytest.mark.parametrize("distribution", ["none", "torch_distributed"])
    def test_a_shell_script_under_torchrun(self, source: Path, distribution: str) -> None:
        source.joinpath("run.sh").write_text("true\n")
        made = request(source, "--distribution", distribution, "run.sh")
        if distribution == "none":
            check_entry_point(made)
        else:
            with pytest.raises(RehearsalError, match="takes only a Python file"):
                check_entry_point(made)

    def test_a_setup_py_under_torchrun(self, source: Path) -> None:
        source.joinpath("setup.py").write_text("")
        check_entry_point(request(source, "plain.py"))
        with pytest.raises(RehearsalError, match="makes the source directory a package"):
            check_entry_point(request(source, "--distribution", "torch_distributed", "plain.py"))

    def test_a_port_in_use(self) -> None:
        with socket.socket() as taken:
            taken.bind(("127.0.0.1", 0))
            taken.listen()
            with pytest.raises(RehearsalError, match="is in use"):
                check_port(port=taken.getsockname()[1])

    @pytest.mark.parametrize(
        ("module", "words"),
        [
            ("mpi4py", r"mpi4py.*not installed.*HINT: pip install 'lightning-sm\[rehearse\]'"),
            ("sagemaker_training", r"toolkit.*not installed.*HINT: pip install 'lightning-sm\[rehearse\]'"),
        ],
    )
    def test_what_is_missing_names_the_extra(
        self, source: Path, monkeypatch: pytest.MonkeyPatch, module: str, words: str
    ) -> None:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == module else object())
        monkeypatch.setattr(shutil, "which", lambda name, path=None: name)
        with pytest.raises(RehearsalError, match=words):
            check_software(request(source, "--distribution", "mpi", "plain.py"))

    @pytest.mark.parametrize(
        ("arguments", "isolation", "words"),
        [
            (["--distribution", "mpi"], "loopback", "ssh on port 22.*HINT.*netns"),
            (["--distribution", "mpi"], "userns", "sshd needs real users"),
            (["--sdk", "v3"], "loopback", "/opt/ml by its absolute name"),
            (["--bandwidth", "1gbit"], "loopback", "network of their own"),
            (["--instance-groups", "a=1,b=1", "--distribution", "torch_distributed"], "loopback", "world of its own"),
        ],
    )
    def test_an_isolation_that_does_not_fit(
        self, source: Path, arguments: List[str], isolation: str, words: str
    ) -> None:
        with pytest.raises(RehearsalError, match=words):
            choose_isolation(request(source, "--isolation", isolation, *arguments, "plain.py"))


class TestContainer:
    def test_files(self, source: Path) -> None:
        made = request(source, "--hosts", 2, "--channel", f"training={source}", "plain.py", "--a", "1")
        files = config_files(made, "algo-2", interface="eth0", base="/opt/ml")
        assert set(files) == {"hyperparameters.json", "inputdataconfig.json", "resourceconfig.json"}
        assert files["resourceconfig.json"] == {
            "current_host": "algo-2",
            "current_instance_type": "ml.m5.xlarge",
            "current_group_name": "homogeneousCluster",
            "hosts": ["algo-1", "algo-2"],
            "instance_groups": [
                {
                    "instance_group_name": "homogeneousCluster",
                    "instance_type": "ml.m5.xlarge",
                    "hosts": ["algo-1", "algo-2"],
                }
            ],
            "network_interface_name": "eth0",
        }
        assert files["inputdataconfig.json"] == {
            "training": {
                "TrainingInputMode": "File", "S3DistributionType": "FullyReplicated", "RecordWrapperType": "None"
            }
        }  # fmt: skip

    def test_checkpoints_follow_the_base(self, source: Path) -> None:
        made = request(source, "--checkpoint-dir", source, "plain.py")
        files = config_files(made, "algo-1", interface="lo", base="/base")
        assert files["checkpointconfig.json"]["LocalPath"] == "/base/checkpoints"

    def test_a_stray_rank_stays_out(self, source: Path) -> None:
        made = request(source, "--env", "PATH=/mine", "plain.py")
        found = container_environment(made, {"RANK": "3", "SM_HOSTS": "x", "AWS_REGION": "eu", "PATH": "/p"}, home="/h")
        assert "RANK" not in found
        assert "SM_HOSTS" not in found
        assert (found["AWS_REGION"], found["PATH"], found["HOME"]) == ("eu", "/mine", "/h")

    def test_the_requests_own_path_comes_first(self, source: Path, tmp_path: Path) -> None:
        made = request(source, "--env", "PATH=/mine", "plain.py")
        plan = create_plan(made, Isolation.NETNS, {"PATH": "/p"}, RehearsalFolder(tmp_path))
        folders = plan.variables(RehearsalFolder(tmp_path), "algo-1")["PATH"].split(":")
        assert folders[0] == "/mine"
        assert "/p" in folders
        assert os.path.dirname(sys.executable) in folders

    def test_loopback_hosts_keep_their_order(self, source: Path, tmp_path: Path) -> None:
        made = request(source, "--hosts", 10, "plain.py")
        plan = create_plan(made, Isolation.LOOPBACK, {}, RehearsalFolder(tmp_path))
        assert plan.request.groups[0].hosts[1] == "127.0.0.2"
        assert plan.request.groups[0].hosts[9] == "127.0.0.10"
        assert plan.variables(RehearsalFolder(tmp_path), "127.0.0.2")["SAGEMAKER_BASE_DIR"].endswith("127.0.0.2/ml")


class TestCheckpoints:
    def test_only_changes_travel(self, tmp_path: Path) -> None:
        bucket, leader, worker = (tmp_path / name for name in ("bucket", "leader", "worker"))
        bucket.mkdir()
        for name in ("last", "old"):
            (bucket / name).write_text("1")
        before = {each: fetch_checkpoints(bucket, each) for each in (leader, worker)}
        (leader / "last").write_text("two")
        (leader / "old").unlink()
        (leader / "sub").mkdir()
        (leader / "sub" / "new").write_text("3")
        for each in (leader, worker):
            send_checkpoints(each, before[each], bucket)
        assert {str(path.relative_to(bucket)): path.read_text() for path in bucket.rglob("*") if path.is_file()} == {
            "last": "two",
            "sub/new": "3",
        }


class TestNetworkAndMounts:
    def test_addresses(self) -> None:
        assert addresses(["algo-1", "algo-2"]) == {"algo-1": "10.0.0.2", "algo-2": "10.0.0.3"}
        assert hosts_file({"algo-1": "10.0.0.2"}) == "127.0.0.1 localhost\n10.0.0.2 algo-1\n"

    def test_mounts(self, tmp_path: Path) -> None:
        info = "\n".join(
            f"1 1 0:1 / {point} rw - ext4 x rw"
            for point in ("/", "/proc", "/sys/fs/cgroup", "/dev/shm", str(tmp_path), "/nowhere/at/all")
        )
        assert other_mounts(info, Path("/tree")) == (str(tmp_path),)
        assert other_mounts(info, tmp_path) == ()
        spaced = tmp_path / "a b"
        spaced.mkdir()
        assert other_mounts(f"1 1 0:1 / {tmp_path}/a\\040b rw - ext4 x rw", Path("/tree")) == (str(spaced),)

    @pytest.mark.parametrize(("text", "value"), [("90", 90.0), ("1.5m", 90.0), ("500ms", 0.5), ("2h", 7200.0)])
    def test_times(self, text: str, value: float) -> None:
        assert read_seconds(text, "--timeout") == value

    def test_rates(self) -> None:
        assert read_bandwidth("1gbit", "--bandwidth") == 10**9
        assert read_seconds("1ms", "--latency") == pytest.approx(0.001)
