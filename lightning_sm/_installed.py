"""Whether a file belongs to the project, or to Python or a package that is installed."""

import functools
import os
import sysconfig

__all__ = ["is_installed"]

_STDLIB = tuple({os.path.realpath(sysconfig.get_path(name)) + os.sep for name in ("stdlib", "platstdlib")})
_PACKAGES = {"site-packages", "dist-packages"}


@functools.lru_cache(maxsize=None)
def is_installed(path: str) -> bool:
    """Whether a file is of Python's library or of an installed package; one in its prefix, such as ``/usr``, need not.

    Args:
        path: The file's path.
    """
    real = os.path.realpath(path)
    return real.startswith(_STDLIB) or not _PACKAGES.isdisjoint(real.split(os.sep))
