"""One device for each process of this host."""

from typing import TYPE_CHECKING, List

from lightning_sm.errors import TopologyError

if TYPE_CHECKING:
    import torch

__all__ = ["one_device_each"]


def one_device_each(devices: "List[torch.device]", local_size: int) -> "List[torch.device]":
    """Return one device for each process that the launcher started on this host.

    A number of devices gives way to the launcher's; certain devices, such as ``devices=[2, 3]``, do not.

    Raises:
        TopologyError: There are fewer devices than processes, or certain devices are named for another number of them.
    """
    import torch

    if devices[0].type == "cpu":
        return [torch.device("cpu")] * local_size
    indices = [device.index for device in devices]
    if indices != list(range(len(devices))):
        raise TopologyError(
            f"devices={indices} in the Trainer, but the launcher started {local_size} processes on this host.",
            hint="Leave devices out, or name as many as there are processes (processes_per_host, nproc_per_node).",
        )
    if local_size < len(devices):
        return devices[:local_size]
    if devices[0].type == "cuda" and torch.cuda.device_count() >= local_size:
        return [torch.device("cuda", index) for index in range(local_size)]
    raise TopologyError(
        f"The launcher started {local_size} processes on this host, for which there are {len(devices)} devices: "
        f"{[str(device) for device in devices]}.",
        hint="Start as many processes per host as it has GPUs (processes_per_host, nproc_per_node).",
    )
