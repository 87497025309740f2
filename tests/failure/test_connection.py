import socket

import pytest

from lightning_sm._failure.connection import Address, decode_message, interface_address, job_address, listen
from lightning_sm._sagemaker.job import TrainingJob
from lightning_sm._sagemaker.topology import Topology


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def bound(host, *, num_nodes=2, interface=None, ports=None):
    server = listen(Address(host, ports or (free_port(),), "token", num_nodes, interface))
    if server is None:
        return None
    with server:
        return server.getsockname()[0]


def test_it_listens_where_the_others_come_to_and_nowhere_else():
    assert bound("127.0.0.1") == "127.0.0.1"
    assert bound("127.0.0.1", interface="no-such") == "127.0.0.1"
    assert bound("no-such-host.invalid") is None


def resolves_to(monkeypatch, *addresses):
    found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (address, 0)) for address in addresses]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)


def test_a_name_that_means_loopback_here_and_another_address_there(monkeypatch):
    resolves_to(monkeypatch, "127.0.1.1")
    monkeypatch.setattr(
        "lightning_sm._failure.connection.interface_address", lambda name: "127.0.0.9" if name == "eth0" else None
    )
    assert bound("algo-1", interface="eth0") == "127.0.0.9"
    # Nobody comes from elsewhere.
    assert bound("algo-1", interface="eth0", num_nodes=1) == "127.0.1.1"
    assert bound("algo-1", interface="ethwe") == "127.0.1.1"


def test_an_address_that_this_host_does_not_have(monkeypatch):
    resolves_to(monkeypatch, "192.0.2.1")
    assert bound("algo-1") is None
    monkeypatch.setattr("lightning_sm._failure.connection.interface_address", lambda name: "127.0.0.9")
    assert bound("algo-1", interface="eth0") == "127.0.0.9"


def test_the_address_of_an_interface():
    assert interface_address("lo") == "127.0.0.1"
    assert interface_address("no-such-interface-of-any-name") is None
    assert interface_address(None) is None


def test_a_port_that_is_in_use():
    with socket.create_server(("127.0.0.1", 0)) as other:
        used = other.getsockname()[1]
        assert bound("127.0.0.1", ports=(used,)) is None
        assert bound("127.0.0.1", ports=(used, free_port())) == "127.0.0.1"


def address(opt_ml, environ=None, port=7777, **hyperparameters):
    opt_ml.hyperparameters(sagemaker_job_name="job-1", **hyperparameters)
    job = TrainingJob.resolve({**opt_ml.environ(), **(environ or {})})
    return job_address(job, Topology("torchrun", main_address="algo-1", main_port=port, num_nodes=2))


def test_all_hosts_of_a_job_know_the_same(opt_ml, in_environ):
    first = address(opt_ml.host("algo-1", "algo-1", "algo-2"))
    assert first.ports == (7778, 7779, 7780, 7781)
    assert (first.host, first.num_nodes, first.interface) == ("algo-1", 2, "eth0")
    assert address(opt_ml.host("algo-2", "algo-1", "algo-2")) == first
    assert address(opt_ml.host("algo-1", "algo-1", "algo-3")).token != first.token
    opt_ml.host("algo-1", "algo-1", "algo-2")
    assert address(opt_ml, sagemaker_region="eu-west-1").token != first.token

    # Each host's agent counts the restarts of its own workers.
    opt_ml.hyperparameters()
    in_environ({"TORCHELASTIC_RESTART_COUNT": "1"})
    assert address(opt_ml) == first


@pytest.mark.parametrize("port", [1, 65531, 65534, 65535])
def test_there_are_ports_beside_every_port(opt_ml, port):
    ports = address(opt_ml.host("algo-1"), port=port).ports
    assert len({*ports, port}) == 5
    assert all(0 < each < 65536 for each in ports)


def test_json_nested_too_deeply_is_not_a_message():
    assert decode_message(b"[" * 20_000) is None
