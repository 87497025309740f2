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
        RuntimeError("the database said: connection refused"),
        RuntimeError("Broken pipe"),
        ConnectionResetError("Connection reset by peer"),
        ValueError(_GLOO),
    ],
    ids=str,
)
def test_errors_with_a_cause_of_their_own(error):
    assert not looks_secondary(error)


_OF_ANYBODY = ["Socket Timeout", "Broken pipe", "Connection reset by peer", "Connection refused", "Wait timeout"]
_QUOTED = """Caught RuntimeError in DataLoader worker process 0.
Original Traceback (most recent call last):
  File "data.py", line 3, in __getitem__
    raise RuntimeError("connection refused")
RuntimeError: connection refused
"""


def raised_in(module, message):
    names = {"__name__": module}
    exec("def fail(message):\n    raise RuntimeError(message)", names)
    with pytest.raises(RuntimeError) as caught:
        names["fail"](message)
    return caught.value


@pytest.mark.parametrize("message", _OF_ANYBODY)
def test_what_anybody_may_say_counts_where_torch_says_it(message):
    assert looks_secondary(raised_in("torch.distributed.distributed_c10d", message))
    assert not looks_secondary(raised_in("data", message))
    assert not looks_secondary(raised_in("torchdata.nodes", message))


def test_an_error_of_a_data_loaders_worker_is_its_own():
    assert not looks_secondary(raised_in("torch._utils", _QUOTED))


def test_the_host_behind_an_address():
    assert peer_host(_GLOO, ("no-such-host.invalid", "localhost")) == "localhost"
    assert peer_host(_GLOO.replace("127.0.0.1", "192.0.2.1"), ("localhost",)) is None
    assert peer_host("no address at all", ("localhost",)) is None
    assert peer_host("NCCL: socketProgress: remote peer 127.0.0.1<52342>", ("localhost",)) == "localhost"
    assert peer_host(_GLOO, ("x" * 70,)) is None
