import pytest

from lightning_sm._failure._secondary import looks_secondary, peer_host

_GLOO = "[../third_party/gloo/gloo/transport/tcp/pair.cc:553] Connection closed by peer [127.0.0.1]:6795"


class DistBackendError(RuntimeError):
    """As torch names it."""


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(_GLOO),
        RuntimeError("[..pair.cc:589] Read error [10.0.1.2]:39129: Connection reset by peer"),
        RuntimeError("Application timeout caused pair closure"),
        RuntimeError("[gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation"),
        RuntimeError("NCCL error in: ../torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp:1269, remote process exited"),
        RuntimeError("[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(OpType=ALLREDUCE)"),
        RuntimeError("Socket Timeout"),
        RuntimeError("Broken pipe"),
        RuntimeError("Connection reset by peer"),
        DistBackendError("whatever"),
    ],
    ids=lambda error: str(error)[-40:],
)
def test_errors_of_those_who_lost_a_peer(error):
    assert looks_secondary(error)


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("mat1 and mat2 shapes cannot be multiplied"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("DataLoader timed out after 60 seconds"),
        ConnectionResetError("Connection reset by peer"),
        ValueError(_GLOO),
    ],
    ids=str,
)
def test_errors_with_a_cause_of_their_own(error):
    assert not looks_secondary(error)


def test_the_host_behind_an_address():
    assert peer_host(_GLOO, ("no-such-host.invalid", "localhost")) == "localhost"
    assert peer_host(_GLOO.replace("127.0.0.1", "192.0.2.1"), ("localhost",)) is None
    assert peer_host("no address at all", ("localhost",)) is None
    assert peer_host("NCCL: socketProgress: remote peer 127.0.0.1<52342>", ("localhost",)) == "localhost"
    assert peer_host(_GLOO, ("x" * 70,)) is None
