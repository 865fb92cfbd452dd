"""Collectives of ranks on several nodes: passes arrivals between the nodes while the replay runs."""

from __future__ import annotations

import threading
import time

from dxt_replay.replay.engine.clock import StopFlag
from dxt_replay.replay.engine.wait_counters import ARRIVALS, OWN_ARRIVALS, Counters
from dxt_replay.replay.ranks.comm import NodeLeaders
from dxt_replay.traces.errors import ReplayError

POLL_S = 20e-6
"""Seconds between two looks for arrivals: the delay that a relay adds to the latency of the network."""


class MeetingRelay:
    """Sends this node's arrivals to the other nodes, and adds theirs to the counter that the ranks here wait for.

    The first process of each node has a relay, which calls MPI from a thread of its own.
    `ranks`: the number of ranks that meet.
    `stop`: the flag that ends the lanes of this process. A relay that fails sets it, because nothing would wake the
        lanes any more.
    Raises: ReplayError when MPI may not be called from several threads at once.
    """

    def __init__(self, leaders: NodeLeaders, counters: Counters, ranks: int, stop: StopFlag) -> None:
        if not leaders.any_thread:
            raise ReplayError(
                "ranks on several nodes that meet at collectives need MPI_THREAD_MULTIPLE, which this MPI library did "
                "not grant: use a library that does (and MPI4PY_RC_THREAD_LEVEL=multiple), run all processes on one "
                "node, or replay with --pace think"
            )
        self._channel = leaders.channel
        self._counters = counters
        self._ranks = ranks
        self._stop = stop
        self._sent = 0
        self._ended = threading.Event()
        self._failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, name="meeting-relay", daemon=True)

    def start(self) -> None:
        """Start the thread that passes arrivals on."""
        self._thread.start()

    def stop(self) -> None:
        """End the thread. Arrivals that other nodes have not sent yet are dropped."""
        self._ended.set()
        self._thread.join()

    def check(self) -> None:
        """Raises: ReplayError when the relay failed and therefore stopped the lanes of this process."""
        if self._failure is not None:
            raise ReplayError(
                f"the relay of collectives between the nodes failed ({self._failure}), so ranks would have waited for "
                "ever: the replay was ended; see the MPI library's messages, or run all processes on one node"
            ) from self._failure

    def _run(self) -> None:
        try:
            while not self._ended.is_set():
                self._send()
                while self._channel.iprobe():
                    self._counters.add(ARRIVALS, self._channel.recv(), self._ranks, time.monotonic_ns())
                time.sleep(POLL_S)
            self._send()  # a node that is done must not leave the others waiting for it
        except Exception as error:  # whatever MPI raised: the feeder thread reports it (`check`)
            self._failure = error
            self._stop.set()

    def _send(self) -> None:
        arrived = self._counters.value(OWN_ARRIVALS)
        if arrived == self._sent:
            return
        for other in range(self._channel.Get_size()):
            if other != self._channel.Get_rank():
                self._channel.send(arrived - self._sent, dest=other)
        self._sent = arrived
