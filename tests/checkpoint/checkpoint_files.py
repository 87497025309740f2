"""Checkpoint files as Lightning writes them, and ways to damage them."""

import zipfile

import torch

__all__ = ["damage", "flip", "write"]


class Extra:
    """Something that a project saves beside plain values; when it is loaded, code of the project runs."""

    loaded = 0

    def __init__(self):
        self.value = 1

    def __setstate__(self, state):
        Extra.loaded += 1
        self.__dict__.update(state)


def write(path, step=10, epoch=1, batches=None, epochs_done=1, **more):
    """Write a checkpoint with a tensor of 4,000 numbers."""
    progress = {"total": {"processed": batches if batches is not None else step}}
    loops = {"epoch_progress": {"current": {"processed": epochs_done}}, "epoch_loop.batch_progress": progress}
    content = {
        "epoch": epoch,
        "global_step": step,
        "pytorch-lightning_version": "2.0.0",
        "loops": {"fit_loop": loops},
        "state_dict": {"weight": torch.arange(4000.0), "bias": torch.nn.Parameter(torch.ones(3))},
        "optimizer_states": [{"state": {0: {"momentum": torch.ones(4000)}}, "param_groups": [{"lr": 0.1}]}],
        **more,
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    torch.save({key: value for key, value in content.items() if value is not None}, path)
    return path


def flip(path, record_ends_with):
    """Flip one bit in the middle of a record."""
    with zipfile.ZipFile(path) as archive:
        record = next(each for each in archive.infolist() if each.filename.endswith(record_ends_with))
    content = bytearray(path.read_bytes())
    header = record.header_offset
    name, extra = (int.from_bytes(content[header + at : header + at + 2], "little") for at in (26, 28))
    content[header + 30 + name + extra + record.file_size // 2] ^= 16
    path.write_bytes(content)


def damage(path, kind):
    """Damage a file as interrupted uploads, downloads and disks do."""
    content = path.read_bytes()
    if kind == "empty":
        path.write_bytes(b"")
    elif kind == "truncated":
        path.write_bytes(content[:-50])
    elif kind == "half":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "zeros in its middle":
        path.write_bytes(content[:9000] + bytes(4096) + content[9000 + 4096 :])
    elif kind == "text":
        path.write_text("<Error><Code>SlowDown</Code></Error>")
    elif kind == "flipped bit in a tensor":
        flip(path, "/data/0")
    elif kind == "flipped bit in the pickle":
        flip(path, "/data.pkl")
    else:
        raise ValueError(kind)
