"""Ways to damage checkpoint files, and something that a project saves in them."""

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
    if kind == "truncated":
        del content[-50:]
    else:
        assert kind == "flipped bit"
        content[len(content) // 2] ^= 16
    path.write_bytes(content)
