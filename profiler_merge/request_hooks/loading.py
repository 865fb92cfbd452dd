"""Changes the clients of object stores as the job imports them, and imports none itself.

It also counts the bytes that each TCP connection of Python's sockets received, whichever client made it. `record` polls
connections from outside and misses those that end between two polls, such as one for each GET.
"""

from __future__ import annotations

import importlib.util
import os
import socket
import struct
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from typing import Any

from .log import FOLDER_VARIABLE, begin, name_of, note_received

_HOOKS = {
    "botocore.client": "botocore_hooks:of_client",
    "botocore.awsrequest": "botocore_hooks:of_connections",
    "botocore.httpsession": "botocore_hooks:of_session",
    "aiobotocore.client": "aiobotocore_hooks:of_client",
    "aiobotocore.httpsession": "aiobotocore_hooks:of_session",
}
"""Module -> the function that changes it after it was imported."""

_INFO_BYTES, _RECEIVED_AT = 192, 128
"""As much of `struct tcp_info` as is needed, and the offset of `tcpi_bytes_received` in it (Linux 4.1)."""


class _Finder:
    """Finds the modules of _HOOKS as the other finders do, and has them changed when they are loaded."""

    def __init__(self) -> None:
        self._busy: set = set()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> Any:
        """As `importlib.abc.MetaPathFinder`; None for all other modules."""
        if name not in _HOOKS or name in self._busy:
            return None
        self._busy.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._busy.discard(name)
        if spec is None or spec.loader is None:
            return None
        load = spec.loader.exec_module

        def exec_module(module: Any) -> None:
            load(module)
            _change(name, module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec


def _change(name: str, module: Any) -> None:
    """Change a module. A client of an unknown version stays as it is: the job matters more than its recording."""
    file, _, function = _HOOKS[name].partition(":")
    begin()
    try:
        getattr(import_module("." + file, __package__), function)(module)
    except Exception as error:
        sys.stderr.write("dxt-replay: requests through %s are not recorded: %r\n" % (name, error))


def _real_close(self: Any, *arguments: Any, **more: Any) -> None:
    with suppress(OSError, struct.error):  # never connected, reset by the peer, or an old kernel
        if self.family in (socket.AF_INET, socket.AF_INET6) and self.type == socket.SOCK_STREAM:
            information = self.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
            (received,) = struct.unpack_from("=Q", information, _RECEIVED_AT)
            if received:
                note_received(name_of(self.getsockname()), name_of(self.getpeername()), received)
    _close(self, *arguments, **more)


_close: Any = socket.socket._real_close  # type: ignore[attr-defined]


def install() -> None:
    """Record the requests of this process and the bytes of its connections, if there is a folder for them."""
    if os.environ.get(FOLDER_VARIABLE):
        socket.socket._real_close = _real_close  # type: ignore[attr-defined]
        sys.meta_path.insert(0, _Finder())
