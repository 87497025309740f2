"""Ways to damage checkpoint files, and something that a project saves in them."""

import zipfile

__all__ = ["Extra", "damage", "flip"]


class Extra:
    """Something that a project saves beside plain values; when it is loaded, code of the project runs."""

    loaded = 0

    def __init__(self):
        self.value = 1

    def __setstate__(self, state):
        Extra.loaded += 1
        self.__dict__.update(state)


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
