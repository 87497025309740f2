import pytest
import torch

from lightning_sm._distributed.mixin import one_device_per_process
from lightning_sm.errors import TopologyError

_CUDA = [torch.device("cuda", index) for index in range(8)]
_CPU = [torch.device("cpu")]


@pytest.mark.parametrize(
    ("devices", "local_size", "given"),
    [
        (_CPU, 4, [torch.device("cpu")] * 4),
        (_CPU * 8, 2, [torch.device("cpu")] * 2),
        (_CUDA, 2, _CUDA[:2]),
        # Where each process sees its own NeuronCore only, devices="auto" is one.
        ([torch.device("xla", 0)], 2, [torch.device("xla", 0), torch.device("xla", 1)]),
        # `devices` left out gives one; the host has as many as the launcher started processes.
        (_CUDA[:1], 8, _CUDA),
    ],
)
def test_one_device_for_each_process_of_the_launcher(monkeypatch, devices, local_size, given):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 8)
    assert one_device_per_process(devices, local_size) == given


@pytest.mark.parametrize(
    ("devices", "local_size", "gpus", "named"),
    [
        (_CUDA[:1], 2, 1, "'cuda:0'"),
        # Certain devices, which are not replaced by others.
        (_CUDA[2:4], 1, 8, "'cuda:2', 'cuda:3'"),
        (_CUDA[2:4], 4, 8, "'cuda:2', 'cuda:3'"),
    ],
)
def test_another_number_of_devices_than_of_processes(monkeypatch, devices, local_size, gpus, named):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: gpus)
    said = rf"started {local_size} processes .* {len(devices)} devices: \[{named}\]\. HINT: Leave devices out, and"
    with pytest.raises(TopologyError, match=said):
        one_device_per_process(devices, local_size)
