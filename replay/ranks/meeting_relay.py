"""Ranks on several nodes that meet at collectives: arrivals travel between the nodes while the replay runs."""

from __future__ import annotations

import threading
import time
from typing import Any

from replay.engine.wait_counters import ARRIVALS, OWN_ARRIVALS, Counters

POLL_S = 20e-6
"""How often a relay looks for arrivals; a meeting across nodes costs about as much beside the network's latency."""


class MeetingRelay:
    """Tells the other nodes of this node's arrivals, and adds theirs to the counter that the ranks here wait for.

    One per node, in its first process. `leaders`: an mpi4py communicator of these processes and nobody else's.
    """

    def __init__(self, leaders: Any, counters: Counters, ranks: int) -> None:
        self._leaders = leaders
        self._counters = counters
        self._ranks = ranks
        self._told = 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name="meeting-relay", daemon=True)

    def start(self) -> None:
        """Begin to relay."""
        self._thread.start()

    def stop(self) -> None:
        """End; what other nodes have yet to say is dropped."""
        self._ended.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._ended.is_set():
            self._tell()
            while self._leaders.iprobe():
                self._counters.add(ARRIVALS, self._leaders.recv(), self._ranks, time.monotonic_ns())
            time.sleep(POLL_S)
        self._tell()  # a node that is done must not leave the others waiting for it

    def _tell(self) -> None:
        arrived = self._counters.value(OWN_ARRIVALS)
        if arrived == self._told:
            return
        for other in range(self._leaders.Get_size()):
            if other != self._leaders.Get_rank():
                self._leaders.send(arrived - self._told, dest=other)
        self._told = arrived
