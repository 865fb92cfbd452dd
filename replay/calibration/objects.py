"""Calibrates an object store: the requests of the replay's own back end on open connections, in the rounds of files."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import ClassVar

import numpy as np

from dxt_replay.replay.calibration.calibration import DISTURBED, Calibration
from dxt_replay.replay.calibration.issued import Issued, LaneItems, issue
from dxt_replay.replay.calibration.model_fit import fit_objects
from dxt_replay.replay.calibration.object_figures import object_caveats, object_figures
from dxt_replay.replay.calibration.probe_plan import OBJECT_BYTES, Kind, Probe, plan_time
from dxt_replay.replay.calibration.read_ahead import ReadAhead
from dxt_replay.replay.calibration.rounds import OnProgress, Rounds
from dxt_replay.replay.calibration.scratch import NAME
from dxt_replay.replay.calibration.throttle import throttles
from dxt_replay.replay.calibration.trials import MANY_USES
from dxt_replay.replay.engine.backends.objects import ObjectBackend, ObjectFile
from dxt_replay.replay.engine.files import Backend, FileSlot
from dxt_replay.replay.engine.issue import Files
from dxt_replay.replay.engine.items import CLOSE, DELETE, LIST, OPEN, READ_AT, RENAME, STAT, WRITE_AT
from dxt_replay.replay.target.manifest import read_manifest
from dxt_replay.replay.target.object_store import (
    ObjectPlace,
    delete_object,
    parse_object_url,
    put_whole,
    read_range_timed,
)
from dxt_replay.replay.target.targets import open_target
from dxt_replay.traces.errors import TargetError

MOST_OBJECTS = 32
"""Most objects that are written to be read."""

MOST_TWIN_OBJECTS = 1024
"""Most objects of a twin that are read."""

MOST_REQUESTS = 4096
"""Most requests of a connection in a trial."""

COPIED_BYTES = 4096


def calibrate_objects(
    url: str, seconds: float, *, seed: int = 1, on_progress: OnProgress = lambda done, total, what: None
) -> Calibration:
    """Measure the object store of `url` for about `seconds`.

    It reads and writes objects of its own below the prefix, which are removed at the end, also after an error. Where it
    may not write, it reads the objects of a staged twin, and measures no PUT.
    Raises: UsageError for a time that is too short; TargetError for a store that refuses requests.
    """
    plan, place = plan_time(seconds, objects=True), parse_object_url(url)
    run = _Run(target=url, plan=plan, random=np.random.default_rng(seed), on_progress=on_progress)
    with _bench(place, run.random, plan.fill_s, run.report) as bench:
        return run.result(bench, place)


@dataclass(slots=True, kw_only=True)
class _Run(Rounds):
    reads: ClassVar[Kind] = Kind.GET
    needed: ClassVar[frozenset[tuple[str, str]]] = frozenset({("GET", "")})

    def has_the_least(self) -> bool:
        """False, so that the first round is always complete: there are few probes, and each shows another request."""
        return False

    def result(self, bench: ObjectBench, place: ObjectPlace) -> Calibration:
        burst = self.bursts(bench)
        limits = throttles(burst)
        self.measure(bench, limits)
        self.repeat(bench, limits)
        measured, disturbed = self.undisturbed()
        if not any(each.call == "GET" for each in measured) and bench.refused:
            raise TargetError(f"cannot measure {place.base}: {'; '.join(map(': '.join, bench.refused.items()))}")
        self.check(measured)
        figures = object_figures(measured, own_objects=bench.writable)
        data_bytes = int(bench.sizes.sum())
        model = fit_objects(
            f"object store {place.endpoint or 'of the environment'}, {place.base}",
            f"Measured by dxt-replay calibrate in {time.monotonic() - self.begun:.0f} s.",
            measured,
            limits,
            opens_ask=place.opens_ask,
            least_uncertainty=DISTURBED if disturbed else 0.0,
        )
        return Calibration(
            target=place.url,
            file_system="s3",
            seconds=time.monotonic() - self.begun,
            data_bytes=data_bytes,
            model=model,
            measured=measured,
            burst=tuple(burst),
            read_ahead=ReadAhead(),
            resident_after_drop_pct=None,
            rounds=self.rounds,
            left_out=tuple(self.left_out),
            unseen=object_caveats(figures, bench.refused, disturbed, objects=len(bench.paths), data_bytes=data_bytes),
            object_store=figures,
        )


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


@dataclass(slots=True, kw_only=True)
class ObjectBench:
    """The objects of trials.

    place: prefix of objects of its own. paths, sizes: objects that are read, int64 bytes.
    writable: whether this user may write. refused: request -> why it was not measured.
    """

    place: ObjectPlace
    paths: list[bytes]
    sizes: np.ndarray
    writable: bool
    random: np.random.Generator
    refused: dict[str, str] = field(default_factory=dict)
    backend: ObjectBackend = field(init=False)
    first_byte: _FirstByteBackend = field(init=False)

    def __post_init__(self) -> None:
        self.backend, self.first_byte = ObjectBackend(self.place.url), _FirstByteBackend(self.place.url)

    def run(self, probe: Probe, *, seconds: float, pause_ns: int = 0) -> Issued | None:
        """See `Bench.run`. A request that the store refuses is noted in `refused`."""
        if probe.kind.value in self.refused:  # already on one connection
            return None
        try:
            return _TRIALS[probe.kind](self, probe, seconds, pause_ns)
        except TargetError as error:
            number = getattr(error.__cause__, "errno", None) or 0
            if number in (errno.ECONNREFUSED, errno.EHOSTUNREACH):
                raise
            at = f" on {probe.in_flight} connections" if probe.in_flight > 1 else ""
            self.refused[f"{probe.kind.value}{at}"] = _ANSWERS.get(number, os.strerror(number))
            return None

    def key(self, lane: int, name: str = "") -> str:
        """The key that a connection writes."""
        return self.place.key(f"written-{lane}{name}")

    def path(self, key: str) -> bytes:
        return f"s3://{self.place.bucket}/{key}".encode()

    def issue(
        self, slots: list[FileSlot], lanes: list[LaneItems], seconds: float, backend: Backend, least: int = 1
    ) -> Issued:
        """Issue the items of `lanes`, as `issued.issue`, and close the files."""
        files = Files(slots, [backend] * len(slots))
        written = [int(np.max(lane.length)) for lane in lanes if slots[0].writable]
        if written:
            files.prepare_payload(max(written))
        try:
            return issue(files, lanes, seconds=seconds, doing=f"measure {self.place.base}", least=least)
        finally:
            files.close_all()


_ANSWERS = {errno.EAGAIN: "the store asks for fewer requests", errno.EOPNOTSUPP: "the store has no such request"}


def _get(bench: ObjectBench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    return _reads(bench, probe, seconds, pause_ns, bench.backend)


def _first_byte(bench: ObjectBench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    bench.first_byte.first_ns.clear()
    issued = _reads(bench, probe, seconds, pause_ns, bench.first_byte)
    if issued is None:
        return None
    return replace(issued, end_ns=issued.begin_ns + np.array(bench.first_byte.first_ns[: len(issued)], dtype=np.int64))


def _reads(bench: ObjectBench, probe: Probe, seconds: float, pause_ns: int, backend: Backend) -> Issued | None:
    """Ranges at random places of random objects that are large enough."""
    large = np.flatnonzero(bench.sizes >= probe.size)
    if not len(large):
        return None
    lanes = []
    for _ in range(probe.in_flight):
        chosen = bench.random.choice(large, MOST_REQUESTS)
        lanes.append(
            LaneItems(
                kind=READ_AT,
                slot=chosen,
                offset=bench.random.integers(0, bench.sizes[chosen] - probe.size + 1),
                length=probe.size,
                pause_ns=pause_ns,
                count=MOST_REQUESTS,
            )
        )
    return bench.issue([FileSlot(path=path, uses=MANY_USES) for path in bench.paths], lanes, seconds, backend)


def _head(bench: ObjectBench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    lanes = [
        LaneItems(kind=STAT, slot=bench.random.integers(0, len(bench.paths), MOST_REQUESTS), count=MOST_REQUESTS)
        for _ in range(probe.in_flight)
    ]
    return bench.issue([FileSlot(path=path, uses=MANY_USES) for path in bench.paths], lanes, seconds, bench.backend)


def _list(bench: ObjectBench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    """LISTs of the folder of the first object."""
    folder = bench.paths[0].rpartition(b"/")[0]
    lanes = [LaneItems(kind=LIST, slot=0, count=MOST_REQUESTS) for _ in range(probe.in_flight)]
    return bench.issue([FileSlot(path=folder, uses=MANY_USES)], lanes, seconds, bench.backend)


def _put(bench: ObjectBench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    """The close after a write puts the object, which is then deleted."""
    return _written(bench, (OPEN, WRITE_AT, CLOSE, DELETE), probe.size, probe.in_flight, seconds)


def _copy(bench: ObjectBench, probe: Probe, seconds: float, pause_ns: int) -> Issued | None:
    """As `_put`, with a rename to a second key before the delete."""
    return _written(bench, (OPEN, WRITE_AT, CLOSE, RENAME, DELETE), COPIED_BYTES, probe.in_flight, seconds)


def _written(bench: ObjectBench, kinds: tuple[int, ...], size: int, count: int, seconds: float) -> Issued | None:
    """Each connection has two keys: one that it puts, and one that a rename gives it."""
    if not bench.writable:
        return None
    keys = [bench.key(lane, name) for lane in range(count) for name in ("", "-renamed")]
    slots = [FileSlot(path=bench.path(key), writable=True, create=True, uses=MANY_USES) for key in keys]
    each = MOST_REQUESTS // len(kinds)
    moved = RENAME in kinds
    lanes = [
        LaneItems(
            kind=np.tile(np.array(kinds, dtype=np.uint8), each),
            slot=np.tile([2 * lane + (moved and kind == DELETE) for kind in kinds], each),
            offset=np.tile([2 * lane + 1 if kind == RENAME else 0 for kind in kinds], each),
            length=np.tile([size if kind == WRITE_AT else 0 for kind in kinds], each),
            count=each * len(kinds),
        )
        for lane in range(count)
    ]
    return bench.issue(slots, lanes, seconds, bench.backend, least=len(kinds))


_TRIALS: Mapping[Kind, Callable[[ObjectBench, Probe, float, int], Issued | None]] = {
    Kind.GET: _get,
    Kind.FIRST_BYTE: _first_byte,
    Kind.PUT: _put,
    Kind.HEAD: _head,
    Kind.LIST: _list,
    Kind.COPY: _copy,
}


@contextmanager
def _bench(
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
        else:
            paths, sizes = _twin(place, refused)
        bench = ObjectBench(place=own, paths=paths, sizes=np.array(sizes), writable=refused is None, random=random)
        if refused is not None:
            bench.refused["PUT, CopyObject and DELETE"] = refused.strerror or str(refused)
        keys += [bench.key(lane, name) for lane in range(8) for name in ("", "-renamed")] if refused is None else []
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
        sizes = files["size"].to_numpy()
        chosen = np.flatnonzero(sizes > 0)
        base, names = target.base, files["path"].to_pylist()
        return [base + names[row].encode() for row in chosen], [int(sizes[row]) for row in chosen]
