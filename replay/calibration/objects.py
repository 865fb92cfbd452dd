"""Trials on an object store: the requests of the replay's own back end on open connections; and what they say of it."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace

import numpy as np

from dxt_replay.replay.calibration.fit import Measured
from dxt_replay.replay.calibration.probes import OBJECT_BYTES, Issued, Kind, Probe, issue, lane_items
from dxt_replay.replay.calibration.scratch import NAME
from dxt_replay.replay.calibration.trials import MANY_USES
from dxt_replay.replay.engine.backends.objects import ObjectBackend, ObjectFile
from dxt_replay.replay.engine.files import FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import CLOSE, DELETE, LIST, OPEN, READ_AT, RENAME, STAT, WRITE_AT
from dxt_replay.replay.target.manifest import read_manifest
from dxt_replay.replay.target.object_store import ObjectPlace, delete_object, put_whole, read_range_timed
from dxt_replay.replay.target.targets import open_target
from dxt_replay.traces.errors import TargetError
from dxt_replay.traces.units import format_bytes

MOST_OBJECTS, MOST_TWIN_OBJECTS = 32, 1024
"""Most objects that are written to be read, and most objects of a twin that are read."""

MOST_REQUESTS = 4096
"""Most requests of a connection in a trial."""

COPIED_BYTES = 4096

_ANSWERS = {errno.EAGAIN: "the store asks for fewer requests", errno.EOPNOTSUPP: "the store has no such request"}


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
    """The objects of trials.

    paths, sizes: objects that are read, int64 bytes. refused: request -> why it was not measured.
    """

    def __init__(
        self, place: ObjectPlace, paths: list[bytes], sizes: Sequence[int], random: np.random.Generator, *, own: bool
    ) -> None:
        self.place, self.paths, self.sizes, self.own = place, paths, np.array(sizes), own
        self.refused: dict[str, str] = {}
        self._random, self._backend, self._first_byte = random, ObjectBackend(place.url), _FirstByteBackend(place.url)

    def run(self, probe: Probe, *, seconds: float, pause_ns: int = 0) -> Issued | None:
        """See `trials.Bench.run`. A request that the store refuses is noted in `refused`."""
        if probe.kind.value in self.refused:  # already on one connection
            return None
        try:
            return self._run(probe, seconds, pause_ns)
        except TargetError as error:
            number = getattr(error.__cause__, "errno", None) or 0
            if number in (errno.ECONNREFUSED, errno.EHOSTUNREACH):
                raise
            at = f" on {probe.in_flight} connections" if probe.in_flight > 1 else ""
            self.refused[f"{probe.kind.value}{at}"] = _ANSWERS.get(number, os.strerror(number))
            return None

    def _run(self, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
        kind, lanes = probe.kind, range(probe.in_flight)
        if kind in (Kind.GET, Kind.FIRST_BYTE):  # ranges at random places of random objects that are large enough
            large = np.flatnonzero(self.sizes >= probe.size)
            if not len(large):
                return None
            items = []
            for _ in lanes:
                chosen = self._random.choice(large, MOST_REQUESTS)
                offset = self._random.integers(0, self.sizes[chosen] - probe.size + 1)
                reads = lane_items(READ_AT, chosen, MOST_REQUESTS, offset=offset, length=probe.size, pause_ns=pause_ns)
                items.append(reads)
            if kind is Kind.GET:
                return self._issue(self.paths, items, seconds)
            self._first_byte.first_ns.clear()
            issued = self._issue(self.paths, items, seconds, self._first_byte)
            first_ns = np.array(self._first_byte.first_ns[: len(issued.kind)], dtype=np.int64)
            return replace(issued, end_ns=issued.begin_ns + first_ns)
        if kind is Kind.HEAD:
            heads = [
                lane_items(STAT, self._random.integers(0, len(self.paths), MOST_REQUESTS), MOST_REQUESTS) for _ in lanes
            ]
            return self._issue(self.paths, heads, seconds)
        if kind is Kind.LIST:  # of the folder of the first object
            folder = self.paths[0].rpartition(b"/")[0]
            return self._issue([folder], [lane_items(LIST, 0, MOST_REQUESTS) for _ in lanes], seconds)
        if not self.own:
            return None
        # The close after a write puts the object, which is then deleted; a copy gets a second key by a rename before.
        size, kinds = (probe.size, (OPEN, WRITE_AT, CLOSE, DELETE)) if kind is Kind.PUT else (COPIED_BYTES, _COPY)
        paths = [f"s3://{self.place.bucket}/{key}".encode() for key in written_keys(self.place, probe.in_flight)]
        each, moved = MOST_REQUESTS // len(kinds), RENAME in kinds
        writes = [
            lane_items(
                np.tile(np.array(kinds, dtype=np.uint8), each),
                np.tile([2 * lane + (moved and kind == DELETE) for kind in kinds], each),
                each * len(kinds),
                offset=np.tile([2 * lane + 1 if kind == RENAME else 0 for kind in kinds], each),
                length=np.tile([size if kind == WRITE_AT else 0 for kind in kinds], each),
            )
            for lane in lanes
        ]
        return self._issue(paths, writes, seconds, payload=size, least=len(kinds))

    def _issue(
        self,
        paths: Sequence[bytes],
        lanes: Sequence[np.ndarray],
        seconds: float,
        backend: ObjectBackend | None = None,
        *,
        payload: int = 0,
        least: int = 1,
    ) -> Issued:
        """Issue the items of `lanes` and close the files."""
        writes = payload > 0
        slots = [FileSlot(path=path, writable=writes, create=writes, uses=MANY_USES) for path in paths]
        files = Files(slots, [backend or self._backend] * len(slots))
        if payload:
            files.prepare_payload(payload)
        try:
            return issue(files, lanes, seconds=seconds, doing=f"measure {self.place.base}", least=least)
        finally:
            files.close_all()


_COPY = (OPEN, WRITE_AT, CLOSE, RENAME, DELETE)


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
        data = random.bytes(OBJECT_BYTES)
        try:
            while len(keys) < MOST_OBJECTS and (time.monotonic() < until or not keys):
                keys.append(own.key(f"data-{len(keys)}"))
                put_whole(client, keys[-1], data)
        except OSError as error:
            if len(keys) > 1:
                raise TargetError(f"cannot write {own.base}: {error.strerror}") from error
            refused = error
        if refused is None:
            paths, sizes = [f"s3://{own.bucket}/{key}".encode() for key in keys], [OBJECT_BYTES] * len(keys)
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
        files = found.slice(0, MOST_TWIN_OBJECTS)
        sizes, names = files["size"].to_numpy(), files["path"].to_pylist()
        chosen = np.flatnonzero(sizes > 0)
        return [target.base + names[row].encode() for row in chosen], [int(sizes[row]) for row in chosen]


@dataclass(frozen=True, slots=True, kw_only=True)
class Connections:
    """GETs on so many connections at once.

    requests_per_s: of the smallest ranges. bytes_per_s: of the largest ranges. None where not measured.
    """

    connections: int
    requests_per_s: float | None
    bytes_per_s: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectFigures:
    """Figures of an object store; None where not measured.

    first_byte_us: from the call of a GET of the smallest range to the head of its answer, median, us.
    first_byte_large_us: the same of the largest range.
    connection_bytes_per_s: bandwidth of one connection, after the first byte of the largest range.
    by_connections: request rate and bandwidth by number of connections.
    own_objects: whether objects of its own were read, otherwise those of a staged twin.
    """

    first_byte_us: float | None
    first_byte_large_us: float | None
    connection_bytes_per_s: float | None
    by_connections: tuple[Connections, ...]
    own_objects: bool


def object_figures(measured: Sequence[Measured], *, own_objects: bool) -> ObjectFigures:
    """The figures of these measurements, which have at least a GET."""
    whole = {(each.size, each.in_flight): each for each in measured if (each.call, each.state) == ("GET", "")}
    first = {each.size: each for each in measured if (each.call, each.state) == ("GET", "first byte")}
    small, large = min(size for size, _ in whole), max(size for size, _ in whole)
    alone, begun = whole.get((large, 1)), first.get(large)
    transfer_ns = alone.p50_ns - begun.p50_ns if alone is not None and begun is not None else 0.0
    by_connections = []
    for count in sorted({count for _, count in whole}):
        few, much = whole.get((small, count)), whole.get((large, count))
        requests_per_s = None if few is None or not few.time_ns.value else count * 1e9 / few.time_ns.value
        bytes_per_s = None if much is None else much.bytes_per_s
        by_connections.append(Connections(connections=count, requests_per_s=requests_per_s, bytes_per_s=bytes_per_s))
    return ObjectFigures(
        first_byte_us=first[small].p50_ns / 1e3 if small in first else None,
        first_byte_large_us=begun.p50_ns / 1e3 if begun is not None else None,
        connection_bytes_per_s=large * 1e9 / transfer_ns if transfer_ns > 0 else None,
        by_connections=tuple(by_connections),
        own_objects=own_objects,
    )


def object_caveats(refused: Mapping[str, str], disturbed: Sequence[Measured], bench: ObjectBench) -> tuple[str, ...]:
    """The limits of a model of an object store for its reader, the most important first.

    refused: request -> why it was not measured.
    """
    found = [f"Not measured: {request} ({why})." for request, why in refused.items()]
    if refused:
        found.append(
            "In the model a request that was not measured takes no time, and on more connections than were measured "
            "as much more as on fewer."
        )
    if disturbed:
        names = ", ".join(dict.fromkeys(f"{each.call} of {format_bytes(each.size)}" for each in disturbed))
        found.append(f"Other work disturbed each trial of {names}: the model has the median of single requests there.")
    which = "had just been written" if bench.own else "are those of the staged twin"
    data_bytes = format_bytes(int(bench.sizes.sum()))
    return (
        *found,
        f"The caches of the store cannot be dropped. The {len(bench.paths)} objects that were read ({data_bytes}) "
        f"{which}, so caches may have served them.",
        "Only this machine was in use: what a store does under the load of other clients, and over hours, was not "
        "measured. Some stores raise or lower their limits meanwhile.",
        "The times include the client on this machine. Where its processors were busy, the store may serve more.",
        "How long a connection takes to open (TCP, TLS) was not measured: connections stayed open.",
    )
