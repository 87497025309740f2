"""Ways to damage checkpoint files, and something that a project saves in them."""

import zipfile

__all__ = ["Extra", "damage"]


class Extra:
    """Something that a project saves beside plain values; when it is loaded, code of the project runs."""

    loaded = 0

    def __init__(self):
        self.value = 1

    def __setstate__(self, state):
        Extra.loaded += 1
        self.__dict__.update(state)


def damage(path, kind):
    """Damage a file as interrupted uploads, downloads and disks do."""
    content = bytearray(path.read_bytes())
    if kind == "empty":
        content.clear()
    elif kind == "truncated":
        del content[-50:]
    else:
        assert kind == "flipped bit in a tensor"
        content[_middle_of_a_tensor(path, content)] ^= 16
    path.write_bytes(content)


def _middle_of_a_tensor(path, content):
    with zipfile.ZipFile(path) as archive:
        record = next(each for each in archive.infolist() if each.filename.endswith("/data/0"))
    header = record.header_offset
    name, extra = (int.from_bytes(content[header + at : header + at + 2], "little") for at in (26, 28))
    return header + 30 + name + extra + record.file_size // 2
