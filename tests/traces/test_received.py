"""What a trace shows of sockets beside what a recording saw of them."""

from __future__ import annotations

from dataclasses import replace

from dxt_replay.traces.schema import Coverage, Unseen
from dxt_replay.traces.unseen import received, why_not_judged, with_unseen

WHOLE = Coverage(bytes=1.0, operations=1.0)
SHARD = Unseen(kind="mapped", name="/data/shard", bytes=300)
STORE = Unseen(kind="socket", name="10.0.0.1:9000", bytes=600)


def test_a_trace_and_the_watch_count_each_peer_once() -> None:
    assert received({"10.0.0.1:9000": 700}, 0, 100, (SHARD, STORE)) == [SHARD, replace(STORE, bytes=700)]
    assert received({"10.0.0.1:9000": 500}, 0, 100, (STORE,)) == [STORE]
    assert received({"10.0.0.2:80": 1}, 0, 100, ()) == [Unseen(kind="socket", name="10.0.0.2:80", bytes=1)]


def test_bytes_from_nobody_knows_where_matter_from_a_hundredth_on() -> None:
    assert received({}, 10, 1000, ()) == []
    (unknown,) = received({}, 11, 1000, ())
    assert (unknown.kind, unknown.bytes) == ("socket", None)
    assert received({}, 11, 1000, (STORE,)) == [STORE]
    why = why_not_judged(with_unseen(WHOLE, 1000, (unknown,)), (unknown,))
    assert why == "bytes were received through sockets from peers that the trace does not show"
