"""The addresses of this machine's network interfaces that are up, from the kernel."""

import array
import fcntl
import socket
import struct
from pathlib import Path
from typing import NamedTuple

# linux/sockios.h, linux/if.h: struct ifreq is 40 bytes on 64-bit systems: name[16], then a union of 24 bytes
_SIOCGIFCONF = 0x8912
_SIOCGIFFLAGS = 0x8913
_IFF_UP = 0x1
_IFREQ_SIZE = 40
_NAME_SIZE = 16
_MAX_INTERFACES = 1024


def up_addresses() -> tuple[str, ...]:
    """The addresses of interfaces that are up, sorted, loopback included. Raises OSError."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        return tuple(sorted({address for name, address in _configured(probe) if _is_up(probe, name)}))


class Address6(NamedTuple):
    """An IPv6 address of this machine and the index of its interface."""

    host: str
    interface: int


_TABLE6 = Path("/proc/net/if_inet6")
_UNSURE = 0x40 | 0x08
"""linux/if_addr.h: IFA_F_TENTATIVE, IFA_F_DADFAILED: an address that another machine may have."""


def up_addresses6() -> tuple[Address6, ...]:
    """The same for IPv6; empty where the machine has none. Raises OSError."""
    try:
        rows = [line.split() for line in _TABLE6.read_text().splitlines()]
    except FileNotFoundError:
        return ()
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        # address, index, prefix length, scope, flags (all hexadecimal), name
        return tuple(
            sorted(
                Address6(socket.inet_ntop(socket.AF_INET6, bytes.fromhex(row[0])), int(row[1], 16))
                for row in rows
                if not int(row[4], 16) & _UNSURE and _is_up(probe, row[5].encode())
            )
        )


def _configured(probe: socket.socket) -> list[tuple[bytes, str]]:
    """Interface name and address of each IPv4 address (`man 7 netdevice`, SIOCGIFCONF)."""
    table = array.array("B", bytes(_MAX_INTERFACES * _IFREQ_SIZE))
    request = struct.pack("iP", len(table), table.buffer_info()[0])
    (used,) = struct.unpack_from("i", fcntl.ioctl(probe, _SIOCGIFCONF, request))
    rows = (table[start : start + _IFREQ_SIZE].tobytes() for start in range(0, used, _IFREQ_SIZE))
    return [(row[:_NAME_SIZE].split(b"\0")[0], socket.inet_ntoa(row[20:24])) for row in rows]


def _is_up(probe: socket.socket, name: bytes) -> bool:
    # an alias such as eth0:1 has the flags of its interface
    request = struct.pack("16s24x", name.split(b":")[0])
    try:
        answer = fcntl.ioctl(probe, _SIOCGIFFLAGS, request)
    except OSError:  # it went away between the two calls
        return False
    return bool(struct.unpack_from("H", answer, _NAME_SIZE)[0] & _IFF_UP)
