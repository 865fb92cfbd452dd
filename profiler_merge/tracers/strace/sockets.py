"""Bytes that a job received through TCP, by peer: strace -yy shows both ends of a connection, -y the socket number."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping

_SOCKET = re.compile(rb"\s*\d+<((?:TCP|TCPv6|socket):\[.*?\])>")
_ENDS = re.compile(r"TCP(?:v6)?:\[(.+)->(.+)\]")
_BRACKETS = re.compile(r"\[(?:::ffff:(?=[\d.]+\]))?(.*)\]")


class Sockets:
    """Bytes received on each connection of the traced processes."""

    def __init__(self) -> None:
        self._received: Counter[bytes] = Counter()

    def note(self, arguments: bytes, received: int) -> None:
        """Add the bytes that a call received on the descriptor in its first argument, if that is a socket.

        Also note calls that receive nothing, because they show which ends of connections are the job's own.
        """
        found = _SOCKET.match(arguments)
        if found is not None:
            self._received[found[1]] += received

    def by_peer(self) -> Mapping[str, int]:
        """Bytes by "address:port", without data that processes of the job sent each other."""
        found = [(ends, received) for shown, received in self._received.items() if (ends := _ends(shown))]
        ours = {own for (own, _), _ in found}
        peers: Counter[str] = Counter()
        for (_, peer), received in found:
            if peer not in ours and received:
                peers[peer] += received
        return dict(sorted(peers.items()))

    def of_unknown_peers(self) -> int:
        """Bytes on sockets whose ends the trace does not show: from outside, or from the job itself."""
        return sum(received for shown, received in self._received.items() if _ends(shown) is None)


def _ends(shown: bytes) -> tuple[str, str] | None:
    """Both ends of a connection, in the form of `recorder.watch`."""
    found = _ENDS.fullmatch(shown.decode("ascii", "backslashreplace"))
    return None if found is None else (_BRACKETS.sub(r"\1", found[1]), _BRACKETS.sub(r"\1", found[2]))
