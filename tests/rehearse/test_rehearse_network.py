"""The network between namespaced hosts: what makes it, and that it is as slow as asked."""

import importlib.util
import json
import os
import time
from pathlib import Path
from typing import List

import pytest

from lightning_sm.rehearse import RehearsalError
from lightning_sm.rehearse import _isolation as isolation
from lightning_sm.rehearse._netns import host_commands, port_name
from lightning_sm.rehearse._request import Link
from lightning_sm.rehearse._shaping import shaping_commands
from lightning_sm.rehearse._switch import Switch
from lightning_sm.rehearse._tap import HEADER

from .machine import needs, processes_with
from .making import request

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


class TestSwitch:
    def frame(self, target: int, source: int) -> bytes:
        return bytes(HEADER) + bytes([2, 0, 0, 0, 0, target]) + bytes([2, 0, 0, 0, 0, source]) + b"content"

    def test_a_frame_for_an_unknown_address_goes_to_all_others(self) -> None:
        switch, frame = Switch((7, 8, 9), 0.005), self.frame(2, 1)
        switch.take(7, frame, 1.0)
        assert switch.due(1.0) == []
        assert switch.rest(1.002) == pytest.approx(0.003)
        assert switch.due(1.0051) == [(8, frame), (9, frame)]
        assert switch.due(2.0) == []
        assert switch.rest(2.0) is None

    def test_a_frame_for_a_known_address_goes_there_alone(self) -> None:
        switch, first, second = Switch((7, 8, 9), 0.0), self.frame(2, 1), self.frame(1, 2)
        switch.take(7, first, 1.0)
        switch.due(1.0)
        switch.take(9, second, 2.0)
        assert switch.due(2.0) == [(7, second)]

    def test_a_frame_for_its_own_port_goes_nowhere(self) -> None:
        switch = Switch((7, 8), 0.0)
        switch.take(7, self.frame(2, 1), 1.0)
        switch.due(1.0)
        switch.take(7, self.frame(1, 3), 1.0)
        assert switch.due(1.0) == []

    def test_frames_keep_their_order_and_their_own_times(self) -> None:
        switch, first, second = Switch((7, 8), 1.0), self.frame(2, 1), self.frame(1, 2)
        switch.take(7, first, 10.0)
        switch.take(8, second, 10.5)
        assert switch.due(11.0) == [(8, first)]
        assert switch.rest(11.0) == pytest.approx(0.5)
        assert switch.due(11.5) == [(7, second)]


class TestCommands:
    def test_interface_names_fit_the_kernel(self) -> None:
        assert port_name("algo-1") == "palgo1"
        assert len(port_name("algo-100000000000")) < 16

    def test_a_bridge_connects_hosts_without_latency(self) -> None:
        commands = [" ".join(command) for command in host_commands("algo-1", "10.0.0.2", Link(), 42)]
        assert "ip link add eth0 type veth peer name palgo1 netns 1" in commands
        assert "nsenter --net=/proc/1/ns/net ip link set palgo1 master stage up" in commands
        assert commands[-1] == "ip link set eth0 up"

    def test_a_host_with_latency_takes_its_device_from_the_stage(self) -> None:
        link = Link(latency_ms=0.5, bits_per_second=10**6)
        commands = [" ".join(command) for command in host_commands("algo-1", "10.0.0.2", link, 42)]
        assert "nsenter --net=/proc/1/ns/net ip link set palgo1 netns 42" in commands
        assert "ip link set palgo1 name eth0" in commands
        assert not any("veth" in command or "netem" in command for command in commands)
        assert "tbf rate 1000000bit" in commands[-1]

    def test_shaping(self) -> None:
        assert shaping_commands(Link(latency_ms=1.0), "eth0") == ()
        (command,) = shaping_commands(Link(bits_per_second=10**9), "eth0")
        assert " ".join(command) == (
            "tc qdisc add dev eth0 root handle 10: tbf rate 1000000000bit burst 1250000 latency 100ms"
        )


@pytest.mark.parametrize(
    ("options", "tried", "words"),
    [
        (
            ["--latency", "1ms"],
            "tuntap",
            "--latency needs TAP devices, and /dev/net/tun makes none here .why.*modprobe",
        ),
        (["--bandwidth", "1gbit"], "tbf", "--bandwidth cannot be had: this kernel has no tbf .why.*sch_tbf"),
    ],
)
def test_a_machine_that_cannot_have_it_says_so_before_anything_starts(
    source: Path, monkeypatch: pytest.MonkeyPatch, options: List[str], tried: str, words: str
) -> None:
    monkeypatch.setattr(isolation, "probe", isolation.Isolation)
    monkeypatch.setattr(isolation.shutil, "which", lambda name, path=None: name)
    monkeypatch.setattr(isolation, "_try", lambda _, script: "why" if tried in script else None)
    with pytest.raises(RehearsalError, match=words):
        isolation.choose(request(source, *options, "plain.py"), "netns")
    without = request(source, "plain.py")
    assert isolation.choose(without, "netns").name == "netns"


@pytest.mark.rehearsal
@pytest.mark.processes
@pytest.mark.parametrize(
    ("name", "latency", "bandwidth"),
    [
        pytest.param("netns", None, "50mbit", marks=needs("netns")),
        pytest.param("netns", "5ms", "50mbit", marks=needs("netns", taps=True)),
        pytest.param("userns", "5ms", None, marks=needs("userns", taps=True)),
    ],
)
def test_the_network_is_as_slow_as_asked(rehearse, source: Path, name: str, latency: str, bandwidth: str) -> None:
    source.joinpath("ping.py").write_text(PING)
    interfaces = set(os.listdir("/sys/class/net"))
    options = ["--latency", latency] * (latency is not None) + ["--bandwidth", bandwidth] * (bandwidth is not None)
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
    # The stage's process namespace ends whatever the attempt did not.
    deadline = time.monotonic() + 5
    while processes_with("lightning_sm.rehearse._switch") and time.monotonic() < deadline:
        time.sleep(0.1)
    assert processes_with("lightning_sm.rehearse._switch") == []


@pytest.mark.rehearsal
@pytest.mark.processes
@pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="lightning is not installed")
@needs("netns", torch=True, taps=True)
def test_training_over_a_slow_network(rehearse, source: Path) -> None:
    source.joinpath("train.py").write_text(TRAIN)
    done = rehearse("--hosts", 2, "--distribution", "torch_distributed", "--latency", "1ms", "train.py")
    assert done.exit_code == 0, done.log
    first, second = measured(done.log)
    assert (first["steps"], first["world_size"]) == (20, 2)
    assert first["weights"] == second["weights"]
    # Both send at once, so a sum costs one way at least.
    assert 1 <= min(first["took"], second["took"]) < 30
