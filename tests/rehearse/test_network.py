"""The network between namespaced hosts: what makes it, and that it is as slow as asked."""

import importlib.util
import json
import os
import shutil
from pathlib import Path
from typing import List, Optional

import pytest

from lightning_sm.rehearse import Isolation, NetworkLink, RehearsalError
from lightning_sm.rehearse import _checks as isolation
from lightning_sm.rehearse._network import host_commands, port_name, shaping_commands
from tests.helpers.rehearsal import cli_request as request
from tests.helpers.rehearsal import needs

# Measures the round trip between two hosts, and how long one MiB takes.
PING = """
import json, os, socket, sys, time
if os.environ["SM_CURRENT_HOST"] == "algo-1":
    server = socket.create_server(("", 5000))
    peer, _ = server.accept()
else:
    deadline = time.monotonic() + 20
    while True:
        try:
            peer = socket.create_connection(("algo-1", 5000), timeout=5)
            break
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
peer.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
def receive(size):
    while size:
        size -= len(peer.recv(size))
if os.environ["SM_CURRENT_HOST"] == "algo-1":
    for _ in range(10):
        receive(1)
        peer.sendall(b"x")
    receive(2**20)
    peer.sendall(b"x")
else:
    trips = []
    for _ in range(10):
        start = time.monotonic()
        peer.sendall(b"x")
        receive(1)
        trips.append((time.monotonic() - start) * 1000)
    start = time.monotonic()
    peer.sendall(bytes(2**20))
    receive(1)
    print("measured " + json.dumps({"trips": trips, "mebibyte": (time.monotonic() - start) * 1000}), flush=True)
peer.close()
"""

# Trains, and says how long a sum over both hosts takes at least.
TRAIN = """
import json, time
import lightning.pytorch as pl
import torch
import torch.distributed as dist
from lightning.pytorch.demos.boring_classes import BoringModel
import lightning_sm

trainer = pl.Trainer(
    max_epochs=1, limit_train_batches=20, limit_val_batches=1, accelerator="cpu", strategy=lightning_sm.SMDDPStrategy(),
    logger=False, enable_checkpointing=False, enable_progress_bar=False, enable_model_summary=False,
)
torch.manual_seed(trainer.global_rank)
model = BoringModel()
trainer.fit(model)
took = []
for _ in range(10):
    start = time.monotonic()
    dist.all_reduce(torch.ones(1))
    took.append((time.monotonic() - start) * 1000)
weights = [number for each in model.parameters() for number in each.flatten().tolist()]
told = {"steps": trainer.global_step, "world_size": dist.get_world_size(), "took": min(took), "weights": weights}
print("measured " + json.dumps(told), flush=True)
"""


def measured(log: str) -> List[dict]:
    return [json.loads(line.split("measured ", 1)[1]) for line in log.splitlines() if "measured {" in line]


class TestCommands:
    def test_interface_names_fit_the_kernel(self) -> None:
        assert port_name("algo-1") == "palgo1"
        assert len(port_name("algo-100000000000")) < 16

    def test_a_bridge_connects_hosts(self) -> None:
        commands = [" ".join(command) for command in host_commands("algo-1", "10.0.0.2", NetworkLink())]
        assert "ip link add eth0 type veth peer name palgo1 netns 1" in commands
        assert "nsenter --net=/proc/1/ns/net ip link set palgo1 master stage up" in commands
        assert commands[-1] == "ip link set eth0 up"

    def test_a_shaped_host_is_connected_to_the_same_bridge(self) -> None:
        link = NetworkLink(latency=0.0005, bits_per_second=10**6)
        commands = [" ".join(command) for command in host_commands("algo-1", "10.0.0.2", link)]
        assert "nsenter --net=/proc/1/ns/net ip link set palgo1 master stage up" in commands
        assert commands[-2] == "tc qdisc add dev eth0 root handle 1: netem delay 0.5ms limit 100000"
        assert "parent 1:1 handle 10: tbf rate 1000000bit" in commands[-1]

    def test_shaping(self) -> None:
        (command,) = shaping_commands(NetworkLink(latency=0.001), "eth0")
        assert " ".join(command) == "tc qdisc add dev eth0 root handle 1: netem delay 1ms limit 100000"
        (command,) = shaping_commands(NetworkLink(bits_per_second=10**9), "eth0")
        assert " ".join(command) == (
            "tc qdisc add dev eth0 root handle 10: tbf rate 1000000000bit burst 1250000 latency 100ms"
        )


@pytest.mark.parametrize(
    ("options", "tried", "words"),
    [
        (
            ["--latency", "1ms"],
            "netem",
            "--latency is not available: this kernel has no netem .why.*HINT.*modprobe sch_netem",
        ),
        (
            ["--bandwidth", "1gbit"],
            "tbf",
            "--bandwidth is not available: this kernel has no tbf .why.*HINT.*modprobe sch_tbf",
        ),
    ],
)
def test_a_machine_that_cannot_have_it_says_so_before_anything_starts(
    source: Path, monkeypatch: pytest.MonkeyPatch, options: List[str], tried: str, words: str
) -> None:
    monkeypatch.setattr(isolation, "probe_isolation", lambda _: None)
    monkeypatch.setattr(shutil, "which", lambda name, path=None: name)
    monkeypatch.setattr(isolation, "probe_qdisc", lambda _, discipline: "why" if tried in discipline else None)
    with pytest.raises(RehearsalError, match=words):
        isolation.choose_isolation(request(source, "--isolation", "netns", *options, "plain.py"))
    without = request(source, "--isolation", "netns", "plain.py")
    assert isolation.choose_isolation(without) is Isolation.NETNS


@pytest.mark.rehearsal
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "latency", "bandwidth"),
    [
        pytest.param("netns", None, "50mbit", marks=needs("netns")),
        pytest.param("netns", "5ms", "50mbit", marks=needs("netns", netem=True)),
        pytest.param("userns", "5ms", None, marks=needs("userns", netem=True)),
    ],
)
def test_the_network_is_as_slow_as_asked(
    rehearse, source: Path, name: str, latency: Optional[str], bandwidth: Optional[str]
) -> None:
    source.joinpath("ping.py").write_text(PING)
    interfaces = set(os.listdir("/sys/class/net"))
    given = (("--latency", latency), ("--bandwidth", bandwidth))
    options = [word for option, value in given if value is not None for word in (option, value)]
    done = rehearse("--isolation", name, "--hosts", 2, "--timeout", "60s", *options, "ping.py")
    assert done.exit_code == 0, done.log
    (seen,) = measured(done.log)
    if latency is None:
        assert min(seen["trips"]) < 5
    else:
        assert 10 <= min(seen["trips"]) < 30
    # 1 MiB at 50 Mbit/s takes 168 ms, of which the bucket saves 10.
    assert (seen["mebibyte"] > 140) == (bandwidth is not None)
    assert set(os.listdir("/sys/class/net")) == interfaces


@pytest.mark.rehearsal
@pytest.mark.processes
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
@needs("netns", torch=True, netem=True)
def test_training_over_a_slow_network(rehearse, source: Path) -> None:
    source.joinpath("train.py").write_text(TRAIN)
    done = rehearse("--hosts", 2, "--distribution", "torch_distributed", "--latency", "1ms", "train.py")
    assert done.exit_code == 0, done.log
    first, second = measured(done.log)
    assert (first["steps"], first["world_size"]) == (20, 2)
    assert first["weights"] == second["weights"]
    # Both send at once, so a sum costs one way at least.
    assert 1 <= min(first["took"], second["took"]) < 30
