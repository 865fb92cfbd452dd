"""The files of one process of a replay: the back ends of its lanes, and the engine's cost of an operation."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.replay.engine.backends.hdf5 import Hdf5Backend
from dxt_replay.replay.engine.backends.mpiio import CollectiveMpiioBackend, MpiioBackend
from dxt_replay.replay.engine.backends.objects import ObjectBackend
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.direct import check_direct
from dxt_replay.replay.engine.files import Backend, FileSlot
from dxt_replay.replay.engine.issue import Files, Lane
from dxt_replay.replay.engine.items import READ_AT, LoopPace, loop_items
from dxt_replay.replay.plan.chosen_layers import (
    BACKENDS,
    HDF5,
    MAPPED,
    MPIIO,
    MPIIO_COLLECTIVE,
    NULL,
    OBJECTS,
    POSIX,
    STDIO,
)
from dxt_replay.replay.plan.lane_plan import ProcessSlots
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_count

PREPARED_BYTES = 64 << 20
"""Most bytes of write data that are made before the run. Data of larger writes are made when they are due."""

_CALIBRATED_ITEMS, _CALIBRATIONS = 4096, 9
"""Items of a round, and rounds, of which the quickest counts: other programs on the machine can only make a round
slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IoOptions:
    """The way in which operations are issued.

    `direct`: past the page cache.
    `hints`: name -> value of the MPI-IO hints.
    `objects`: URL of the target if it is an object store, as `RunOptions.target` has it.
    """

    direct: bool = False
    hints: Mapping[str, str] | None = None
    objects: str = field(default="", compare=False)


_MAKERS: dict[int, Callable[[IoOptions], str | Backend]] = {
    POSIX: lambda io: "direct" if io.direct else "posix",
    STDIO: lambda io: "stdio",
    MPIIO: lambda io: MpiioBackend(io.hints),
    MPIIO_COLLECTIVE: lambda io: CollectiveMpiioBackend(io.hints),
    HDF5: lambda io: Hdf5Backend(),
    NULL: lambda io: "null",
    MAPPED: lambda io: "mapped",
    OBJECTS: lambda io: ObjectBackend(io.objects),
}
"""The back end of each code of a row: a native one by its name, or an object (`replay.engine.files.Backends`)."""


def mpi_hints(capture: Capture) -> dict[str, str]:
    """The hints of MPI-IO that the job's Darshan logs carry: `h=name=value;name=value` in their metadata
    (darshan-runtime's documentation, DARSHAN_LOGHINTS)."""
    recorded = capture.info.job.metadata.get("h", "")
    pairs = (text.partition("=") for text in recorded.split(";"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals and name.strip()}


class ProcessFiles:
    """The files of a process, in `table`, with the back ends that they need.

    Raises: DxtReplayError if a back end is not available.
    """

    def __init__(self, slots: ProcessSlots, io: IoOptions) -> None:
        self._slots = slots
        codes = slots.uses["backend"].tolist()
        self._backends = {code: _make(code, io) for code in sorted(set(codes))}
        self.table = Files(slots, [self._backends[code] for code in codes])
        self._closed_together: list[tuple[bytes, int]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The back ends in use, as in `replay.plan.chosen_layers.BACKENDS`."""
        return tuple(BACKENDS[code] for code in self._backends)

    @property
    def turns(self) -> bool:
        """Whether MPI-IO lanes take turns, because the library is not thread-safe."""
        return any(isinstance(backend, MpiioBackend) and backend.takes_turns for backend in self._backends.values())

    def call_python(self, codes: Iterable[int]) -> bool:
        """Whether one of the back ends with these codes is called in Python, under the interpreter lock."""
        return any(isinstance(self._backends[code], Backend) for code in codes)

    def open_together(self, written: np.ndarray) -> None:
        """Open the files of collective operations, in the order of the slots. `written`: bool (slots,).

        Raises: ReplayError on all processes alike.
        """
        backend = self._backends.get(MPIIO_COLLECTIVE)
        if isinstance(backend, CollectiveMpiioBackend):
            chosen = np.flatnonzero(self._slots.uses["backend"] == MPIIO_COLLECTIVE).tolist()
            backend.open_together(
                [replace(self._slots[i], writable=bool(written[i]), create=bool(written[i])) for i in chosen]
            )

    def prepare_payload(self, length: int) -> None:
        """Make the data for writes of up to `length` bytes, PREPARED_BYTES at most."""
        if length:
            self.table.prepare_payload(min(length, PREPARED_BYTES))

    @property
    def collective(self) -> bool:
        """Whether some operations are collective, so that they wait for the other processes."""
        return MPIIO_COLLECTIVE in self._backends

    def close_all(self) -> None:
        """Close every file but those of collective operations, which `close_together` closes."""
        self.table.close_all()

    def close_together(self) -> None:
        """Close the files of collective operations. All processes must call this."""
        backend = self._backends.get(MPIIO_COLLECTIVE)
        if isinstance(backend, CollectiveMpiioBackend):
            self._closed_together += backend.close_together()

    @property
    def _close_failures(self) -> list[tuple[bytes, int]]:
        """Path and errno of each failed close that is not a recorded operation."""
        noted = self.table.failures()
        return [*((each.path, each.errno) for each in noted if each.call == "close"), *self._closed_together]

    @property
    def close_errors(self) -> dict[int, int]:
        """errno -> files whose close failed with it."""
        return dict(Counter(number for _, number in self._close_failures))

    @property
    def close_warnings(self) -> tuple[str, ...]:
        """Warnings about closes that failed."""
        failures = self._close_failures
        if not failures:
            return ()
        path, number = failures[0]
        which = os.fsdecode(path)
        if len(failures) > 1:
            which = f"{format_count(len(failures))} files, the first {which},"
        return (f"{which} reported an error at the close ({os.strerror(number)}): what was written may not be stored",)


def _make(code: int, io: IoOptions) -> str | Backend:
    if io.direct and code not in (POSIX, NULL):
        raise UsageError(f"--direct is for POSIX operations; this replay uses {BACKENDS[code]} too: give --api posix")
    return _MAKERS[code](io)


def check_io(io: IoOptions, target: str | Path, paths: Iterable[bytes]) -> None:
    """Check before a direct run that the target supports direct I/O. Raises: TargetError."""
    if io.direct:
        check_direct(Path(target), paths)


class _NoCalls(Backend):
    """A back end in Python that does nothing."""

    name = "none"

    def open(self, path: bytes, *, writable: bool, create: bool) -> None:
        pass

    def size(self, handle: Any) -> int:
        return 0

    def read(self, handle: Any, offset: int, length: int, buffer: memoryview) -> int:
        return length

    def write(self, handle: Any, offset: int, length: int, data: memoryview) -> int:
        return length

    def close(self, handle: Any) -> None:
        pass

    def another(self, handle: Any) -> None:
        pass

    def sync(self, handle: Any) -> None:
        pass

    def seek(self, handle: Any, offset: int) -> None:
        pass


def per_operation_ns(*, in_python: bool = False) -> float:
    """The engine's own cost of an operation, ns: the quickest round of null operations without pauses.

    `in_python`: the cost with a back end in Python.
    """
    items = loop_items(READ_AT, 0, _CALIBRATED_ITEMS, place=np.arange(_CALIBRATED_ITEMS), amount=4096)
    best = float("inf")
    for _ in range(_CALIBRATIONS):
        start, files = StartGate(), Files([FileSlot(path=b"null")], _NoCalls() if in_python else "null")
        start.open(time.monotonic_ns())
        lane = Lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
        lane.submit(items)
        lane.finish()
        lane.run()
        done = lane.collect()
        if done is not None and done.count:
            best = min(best, float(done.end_ns[-1] - done.begin_ns[0]) / done.count)
    return best
