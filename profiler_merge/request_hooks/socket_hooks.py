"""Counts the bytes that each TCP connection of Python's sockets received, whichever client made it.

`record` polls connections from outside and misses those that end between two polls, such as one for each GET.
"""

from __future__ import annotations

import socket
import struct
from contextlib import suppress
from typing import Any

from .log import note_received

_INFO_BYTES, _RECEIVED_AT = 192, 128
"""As much of `struct tcp_info` as is needed, and the offset of `tcpi_bytes_received` in it (Linux 4.1)."""


def of_sockets(module: Any) -> None:
    """Read the kernel's counter when a connection is closed: a system call for each connection, none for each read."""
    close = module.socket._real_close

    def _real_close(self: Any, *arguments: Any, **more: Any) -> None:
        with suppress(OSError, struct.error):  # never connected, reset by the peer, or an old kernel
            _note(self)
        close(self, *arguments, **more)

    module.socket._real_close = _real_close


def _note(closing: Any) -> None:
    if closing.family not in (socket.AF_INET, socket.AF_INET6) or closing.type != socket.SOCK_STREAM:
        return
    own, peer = (name_of(each()) for each in (closing.getsockname, closing.getpeername))
    information = closing.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
    (received,) = struct.unpack_from("=Q", information, _RECEIVED_AT)
    if received:
        note_received(own, peer, received)


def name_of(address: Any) -> str:
    """address:port. IPv4 in the form of IPv6 becomes IPv4, so that both ends of a connection look the same."""
    return "%s:%d" % (address[0][7:] if address[0].startswith("::ffff:") else address[0], address[1])
