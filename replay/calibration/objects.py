"""Trials on an object store: the requests of the replay's own back end on open connections; and what they say of it."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import numpy as np

from dxt_replay.replay.calibration import trials
from dxt_replay.replay.calibration.fit import Measured
from dxt_replay.replay.calibration.scratch import NAME
from dxt_replay.replay.engine import items as kinds
from dxt_replay.replay.engine.backends.objects import ObjectBackend, ObjectFile
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.target.manifest import read_manifest
from dxt_replay.replay.target.object_store import ObjectPlace, delete_object, put_whole, read_range_timed
from dxt_replay.replay.target.targets import open_target
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.units import format_bytes

MOST_OBJECTS, MOST_TWIN_OBJECTS = 32, 1024
"""Most objects that are written to be read, and most objects of a twin that are read."""

MOST_REQUESTS = 4096  # Most requests of a connection in a trial
COPIED_BYTES = 4096

_ANSWERS = {errno.EAGAIN: "the store asks for fewer requests", errno.EOPNOTSUPP: "the store has no such request"}
_PUT = (kinds.OPEN, kinds.WRITE_AT, kinds.CLOSE, kinds.DELETE)
"""The close after a write puts the object, which is then deleted; a copy gets a second key by a rename before."""
_COPY = (*_PUT[:3], kinds.RENAME, kinds.DELETE)


class _FirstByteBackend(ObjectBackend):
    """Notes how long each read waited for the head of its answer, ns."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.first_ns: list[int] = []

    def read(self, handle: ObjectFile, offset: int, length: int, buffer: memoryview) -> int:
        """One ranged GET. Raises: OSError."""
        moved, first_ns = read_range_timed(self._client, handle.key, offset, buffer[:length])
        self.first_ns.append(first_ns)
        return moved


class ObjectBench:
    """The objects of trials. paths, sizes: objects that are read, int64 bytes; its own, or those of a staged twin.
    refused: request -> why it was not measured."""

    def __init__(
        self, place: ObjectPlace, paths: list[bytes], sizes: Sequence[int], random: np.random.Generator, *, own: bool
    ) -> None:
        self.place, self.paths, self.sizes, self.own = place, paths, np.array(sizes), own
        self.refused: dict[str, str] = {}
        self._random, self._backend, self._first_byte = random, ObjectBackend(place.url), _FirstByteBackend(place.url)

    def run(self, probe: trials.Probe, *, seconds: float, pause_ns: int = 0) -> trials.Issued | None:
        """See `trials.Bench.run`. A request that the store refuses is noted in `refused`."""
        if probe.kind in self.refused:  # already on one connection
            return None
        try:
            return self._run(probe, seconds, pause_ns)
        except TargetError as error:
            number = getattr(error.__cause__, "errno", None) or 0
            if number in (errno.ECONNREFUSED, errno.EHOSTUNREACH):
                raise
            at = f" on {probe.in_flight} connections" if probe.in_flight > 1 else ""
            self.refused[f"{probe.kind}{at}"] = _ANSWERS.get(number, os.strerror(number))
            return None

    def _run(self, probe: trials.Probe, seconds: float, pause_ns: int) -> trials.Issued | None:
        kind, size, lanes = probe
        if kind in (trials.GET, trials.FIRST_BYTE):  # ranges at random places of random objects that are large enough
            large = np.flatnonzero(self.sizes >= size)
            if not len(large):
                return None
            ranges = {"length": size, "pause_ns": pause_ns}
            items = []
            for _ in range(lanes):
                chosen = self._random.choice(large, MOST_REQUESTS)
                offset = self._random.integers(0, self.sizes[chosen] - size + 1)
                items.append(trials.lane_items(kinds.READ_AT, chosen, MOST_REQUESTS, offset=offset, **ranges))
            if kind == trials.GET:
                return self._issue(self.paths, items, seconds)
            self._first_byte.first_ns.clear()
            of_item, begin_ns, _ = self._issue(self.paths, items, seconds, backend=self._first_byte)
            return of_item, begin_ns, begin_ns + np.array(self._first_byte.first_ns[: len(of_item)], dtype=np.int64)
        if kind == trials.HEAD:
            slots = self._random.integers(0, len(self.paths), (lanes, MOST_REQUESTS))
            looks = [trials.lane_items(kinds.STAT, each, MOST_REQUESTS) for each in slots]
            return self._issue(self.paths, looks, seconds)
        if kind == trials.LIST:  # of the folder of the first object
            folder = self.paths[0].rpartition(b"/")[0]
            return self._issue([folder], [trials.lane_items(kinds.LIST, 0, MOST_REQUESTS)] * lanes, seconds)
        if not self.own:
            return None
        size, what = (size, _PUT) if kind == trials.PUT else (COPIED_BYTES, _COPY)
        paths = [f"s3://{self.place.bucket}/{key}".encode() for key in written_keys(self.place, lanes)]
        each = MOST_REQUESTS // len(what)
        many = np.tile(np.array(what, dtype=np.uint8), each)
        length, renamed = np.where(many == kinds.WRITE_AT, size, 0), many == kinds.RENAME
        gone = (many == kinds.DELETE) & (kind == trials.COPY)
        writes = [
            trials.lane_items(many, 2 * at + gone, len(many), offset=np.where(renamed, 2 * at + 1, 0), length=length)
            for at in range(lanes)
        ]
        return self._issue(paths, writes, seconds, payload=size, least=len(what))

    def _issue(
        self,
        paths: Sequence[bytes],
        lanes: Sequence[np.ndarray],
        seconds: float,
        *,
        backend: ObjectBackend | None = None,
        payload: int = 0,
        least: int = 1,
    ) -> trials.Issued:
        slots = [FileSlot(path=path, writable=payload > 0, create=payload > 0, uses=trials.MANY_USES) for path in paths]
        files = Files(slots, [backend or self._backend] * len(slots))
        doing = f"measure {self.place.base}"
        return trials.issue(files, lanes, seconds=seconds, doing=doing, payload=payload, least=least)


def written_keys(place: ObjectPlace, connections: int) -> list[str]:
    """Two keys for each connection: one that it puts, and one that a rename gives it."""
    return [place.key(f"written-{lane}{name}") for lane in range(connections) for name in ("", "-renamed")]


@contextmanager
def object_bench(
    place: ObjectPlace, random: np.random.Generator, seconds: float, report: Callable[[str], None]
) -> Iterator[ObjectBench]:
    """Write objects to read for about `seconds`; if that is refused, take those of the twin. Raises: TargetError."""
    report("writing data to read")
    own, client = place.below(f"{NAME}{secrets.token_hex(6)}"), place.client()
    keys: list[str] = []
    refused: OSError | None = None
    try:
        until = time.monotonic() + seconds
        data = random.bytes(trials.OBJECT_BYTES)
        try:
            while len(keys) < MOST_OBJECTS and (time.monotonic() < until or not keys):
                keys.append(own.key(f"data-{len(keys)}"))
                put_whole(client, keys[-1], data)
        except OSError as error:
            if len(keys) > 1:
                raise TargetError(f"cannot write {own.base}: {error.strerror}") from error
            refused = error
        if refused is None:
            paths, sizes = [f"s3://{own.bucket}/{key}".encode() for key in keys], [trials.OBJECT_BYTES] * len(keys)
            keys += written_keys(own, 8)
        else:
            paths, sizes = _twin(place, refused)
        bench = ObjectBench(own, paths, sizes, random, own=refused is None)
        if refused is not None:
            bench.refused["PUT, CopyObject and DELETE"] = refused.strerror or str(refused)
        yield bench
    finally:
        for key in keys:
            with suppress(OSError):  # a key that is not there; what else fails has failed before
                delete_object(client, key)


def _twin(place: ObjectPlace, refused: OSError) -> tuple[list[bytes], list[int]]:
    """Path and size of objects of the staged twin. Raises: TargetError where there is none."""
    with open_target(place.url) as target:
        found = read_manifest(target).files if target.exists else None
        if found is None or not len(found):
            raise TargetError(
                f"cannot write below {place.base} ({refused.strerror or refused}), and no twin is staged there whose "
                "objects could be read: get the right to write, or stage a capture there"
            ) from refused
        rows = [row for row in found.slice(0, MOST_TWIN_OBJECTS).select(["path", "size"]).to_pylist() if row["size"]]
        return [target.base + row["path"].encode() for row in rows], [row["size"] for row in rows]


def object_figures(measured: Sequence[Measured], own_objects: bool) -> dict[str, Any]:
    """Figures of an object store; None where not measured. `measured` has at least a GET.

    first_byte_us: from the call of a GET of the smallest range to the head of its answer, median, us.
    first_byte_large_us: the same of the largest range. connection_bytes_per_s: bandwidth of one connection after it.
    by_connections: request rate (smallest ranges) and bandwidth (largest) of so many connections at once."""
    whole = {(each.size, each.in_flight): each for each in measured if (each.call, each.state) == ("GET", "")}
    first = {each.size: each.p50_ns for each in measured if (each.call, each.state) == ("GET", "first byte")}
    small, large = min(size for size, _ in whole), max(size for size, _ in whole)
    transfer_ns = whole[large, 1].p50_ns - first[large] if (large, 1) in whole and large in first else 0.0
    by_connections = [
        {
            "connections": count,
            "requests_per_s": count * 1e9 / few.time_ns if (few := whole.get((small, count))) and few.time_ns else None,
            "bytes_per_s": much.bytes_per_s if (much := whole.get((large, count))) else None,
        }
        for count in sorted({count for _, count in whole})
    ]
    return {
        "first_byte_us": first[small] / 1e3 if small in first else None,
        "first_byte_large_us": first[large] / 1e3 if large in first else None,
        "connection_bytes_per_s": large * 1e9 / transfer_ns if transfer_ns > 0 else None,
        "by_connections": by_connections,
        "own_objects": own_objects,
    }


def object_caveats(disturbed: Sequence[Measured], bench: ObjectBench) -> tuple[str, ...]:
    """The limits of a model of an object store for its reader, the most important first."""
    found = [f"Not measured: {request} ({why})." for request, why in bench.refused.items()]
    if bench.refused:
        found.append(
            "In the model a request that was not measured takes no time, and on more connections than were measured "
            "as much more as on fewer."
        )
    if disturbed:
        names = ", ".join(dict.fromkeys(f"{each.call} of {format_bytes(each.size)}" for each in disturbed))
        found.append(f"Other work disturbed each trial of {names}: the model has the median of single requests there.")
    which = "had just been written" if bench.own else "are those of the staged twin"
    return (
        *found,
        f"The caches of the store cannot be dropped. The {len(bench.paths)} objects that were read "
        f"({format_bytes(int(bench.sizes.sum()))}) {which}, so caches may have served them.",
        "Only this machine was in use: what a store does under the load of other clients, and over hours, was not "
        "measured. Some stores raise or lower their limits meanwhile.",
        "The times include the client on this machine. Where its processors were busy, the store may serve more.",
        "How long a connection takes to open (TCP, TLS) was not measured: connections stayed open.",
    )
