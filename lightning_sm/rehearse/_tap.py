"""TAP devices: network interfaces whose other end is a file, through which a program sees and sends every frame."""

from __future__ import annotations

import fcntl
import os
import struct

from ._errors import RehearsalError

__all__ = ["HEADER", "TUN", "open_tap"]

#: The file behind which the kernel makes such devices.
TUN = "/dev/net/tun"

#: Bytes in front of each frame: what the kernel left undone, such as segments not cut and checksums not computed.
HEADER = 10

# From linux/if_tun.h. Frames without a packet information header, with the one that HEADER describes.
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TAP, _IFF_NO_PI, _IFF_VNET_HDR = 0x0002, 0x1000, 0x4000
# Checksums and segments may be left to the receiver, which is this same kernel: up to 64 KiB go as one frame.
_OFFLOADS = 0x01 | 0x02 | 0x04 | 0x08


def open_tap(name: str) -> int:
    """Make the device ``name`` in this process's network namespace; it lives as long as the file that is returned.

    Raises:
        RehearsalError: The kernel does not make one.
    """
    try:
        file = os.open(TUN, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
        fcntl.ioctl(file, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TAP | _IFF_NO_PI | _IFF_VNET_HDR))
        fcntl.ioctl(file, _TUNSETOFFLOAD, _OFFLOADS)
    except OSError as error:
        raise RehearsalError(f"The TAP device {name} cannot be made by {TUN}: {error.strerror}.") from error
    return file
