"""The files of one process of a replay: which back ends its lanes use for them, and in which core the lanes run."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from dxt_replay.replay.engine.backends.base import Backend, FileSlot
from dxt_replay.replay.engine.backends.null import NullBackend
from dxt_replay.replay.engine.backends.posix import DirectPosixBackend, PosixBackend, check_direct
from dxt_replay.replay.engine.clock import StartGate, StopFlag
from dxt_replay.replay.engine.issue import FileTable, make_files, make_lane, runs_compiled
from dxt_replay.replay.engine.items import READ_AT, Batch, LoopPace
from dxt_replay.replay.plan.chosen_layers import BACKENDS, HDF5, MPIIO, MPIIO_COLLECTIVE, NULL, POSIX, STDIO
from dxt_replay.replay.plan.lane_plan import ProcessSlots
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import format_count

PREPARED_BYTES = 64 << 20
"""Most bytes of write data that are made before the run. Data of larger writes are made when they are due."""

_CALIBRATED_ITEMS = {"compiled": 4096, "python": 512}
_CALIBRATIONS = {"compiled": 9, "python": 3}
"""Rounds, of which the quickest counts: other programs on the machine can only make a round slower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IoOptions:
    """How operations are made.

    `direct`: past the page cache.
    `hints`: name -> value of the MPI-IO hints.
    """

    direct: bool = False
    hints: Mapping[str, str] | None = None

    def posix(self) -> PosixBackend:
        """The POSIX back end."""
        return DirectPosixBackend() if self.direct else PosixBackend()


def mpi_hints(capture: Capture) -> dict[str, str]:
    """The hints of MPI-IO that the job's Darshan logs carry: `h=name=value;name=value` in their metadata
    (darshan-runtime's documentation, DARSHAN_LOGHINTS)."""
    recorded = capture.info.job.metadata.get("h", "")
    pairs = (text.partition("=") for text in recorded.split(";"))
    return {name.strip(): value.strip() for name, equals, value in pairs if equals and name.strip()}


class ProcessFiles:
    """A table of files for the lanes of the compiled core, and another for the lanes of the Python core.

    Each table has every slot, so that a plan does not depend on the core of its lane. A slot that lanes of both cores
    use is closed after the run, because neither table counts all of its uses.
    `core`: the core of lanes whose back ends run in either.
    Raises: DxtReplayError where a back end is not available.
    """

    def __init__(self, slots: ProcessSlots, io: IoOptions, core: str) -> None:
        self._slots = slots
        self._core = core
        self._backends = {code: _make(code, io) for code in sorted(set(slots.backends))}
        self._tables: dict[str, FileTable] = {}
        self._closed_together: list[tuple[bytes, int]] = []

    @property
    def names(self) -> tuple[str, ...]:
        """The back ends in use, as in `replay.plan.chosen_layers.BACKENDS`."""
        return tuple(BACKENDS[code] for code in self._backends)

    @property
    def turns(self) -> bool:
        """Whether MPI-IO lanes take turns, because the library is not thread-safe."""
        return any(getattr(backend, "takes_turns", False) for backend in self._backends.values())

    def table(self, needed: Iterable[int]) -> FileTable:
        """The table for a lane that uses the back ends with these codes."""
        compiled = self._core == "compiled" and all(runs_compiled(self._backends[code]) for code in needed)
        core = "compiled" if compiled else "python"
        if core not in self._tables:
            backends = {code: self._in_core(backend, core) for code, backend in self._backends.items()}
            each = [backends[code] for code in self._slots.backends]
            self._tables[core] = make_files(self._slots.slots, backend=each, core=core)
        return self._tables[core]

    @staticmethod
    def _in_core(backend: Backend, core: str) -> Backend:
        """The back end, or a placeholder in the table of a core that does not run it."""
        return backend if core == "python" or runs_compiled(backend) else NullBackend()

    def open_together(self, written: np.ndarray) -> None:
        """Open the files of collective operations, in the order of the slots. `written`: bool (slots,).

        Raises: ReplayError on all processes alike.
        """
        from dxt_replay.replay.engine.backends.mpiio import CollectiveMpiioBackend

        backend = self._backends.get(MPIIO_COLLECTIVE)
        if isinstance(backend, CollectiveMpiioBackend):
            chosen = np.flatnonzero(np.array(self._slots.backends) == MPIIO_COLLECTIVE).tolist()
            backend.open_together(
                [replace(self._slots.slots[i], writable=bool(written[i]), create=bool(written[i])) for i in chosen]
            )

    def prepare_payload(self, length: int) -> None:
        """Make the data for writes of up to `length` bytes, PREPARED_BYTES at most, in each table."""
        if length:
            for table in self._tables.values():
                table.prepare_payload(min(length, PREPARED_BYTES))

    @property
    def collective(self) -> bool:
        """Whether some operations are collective, and so wait for the other processes."""
        return MPIIO_COLLECTIVE in self._backends

    def close_all(self) -> None:
        """Close every file but those of collective operations, which `close_together` closes."""
        for table in self._tables.values():
            table.close_all()

    def close_together(self) -> None:
        """Close the files of collective operations. All processes must call this."""
        from dxt_replay.replay.engine.backends.mpiio import CollectiveMpiioBackend

        backend = self._backends.get(MPIIO_COLLECTIVE)
        if isinstance(backend, CollectiveMpiioBackend):
            self._closed_together += backend.close_together()

    @property
    def _close_failures(self) -> list[tuple[bytes, int]]:
        """Path and errno of each file whose close failed, where the close is not a recorded operation."""
        noted = (failure for table in self._tables.values() for failure in table.failures())
        return [*((each.path, each.errno) for each in noted if each.call == "close"), *self._closed_together]

    @property
    def close_errors(self) -> dict[int, int]:
        """errno -> files whose close failed with it."""
        return dict(Counter(number for _, number in self._close_failures))

    @property
    def close_warnings(self) -> tuple[str, ...]:
        """What a reader of the result must know about closes that failed."""
        failures = self._close_failures
        if not failures:
            return ()
        path, number = failures[0]
        which = os.fsdecode(path)
        if len(failures) > 1:
            which = f"{format_count(len(failures))} files, the first {which},"
        return (f"{which} reported an error at the close ({os.strerror(number)}): what was written may not be stored",)


def _make(code: int, io: IoOptions) -> Backend:
    if io.direct and code not in (POSIX, NULL):
        raise UsageError(f"--direct is for POSIX operations; this replay uses {BACKENDS[code]} too: give --api posix")
    makers: dict[int, Callable[[], Backend]] = {
        POSIX: io.posix,
        NULL: NullBackend,
        STDIO: _stdio,
        MPIIO: lambda: _mpiio(io.hints),
        MPIIO_COLLECTIVE: lambda: _collective(io.hints),
        HDF5: _hdf5,
    }
    return makers[code]()


def _stdio() -> Backend:
    from dxt_replay.replay.engine.backends.stdio import StdioBackend

    return StdioBackend()


def _mpiio(hints: Mapping[str, str] | None) -> Backend:
    from dxt_replay.replay.engine.backends.mpiio import MpiioBackend

    return MpiioBackend(hints)


def _collective(hints: Mapping[str, str] | None) -> Backend:
    from dxt_replay.replay.engine.backends.mpiio import CollectiveMpiioBackend

    return CollectiveMpiioBackend(hints)


def _hdf5() -> Backend:
    from dxt_replay.replay.engine.backends.hdf5 import Hdf5Backend

    return Hdf5Backend()


def check_io(io: IoOptions, target: Path, paths: Iterable[bytes]) -> None:
    """Check before the run that the target takes direct I/O, if it is asked for. Raises: TargetError; UsageError."""
    io.posix()
    if io.direct:
        check_direct(target, paths)


def per_operation_ns(core: str) -> float:
    """The engine's own cost of an operation in this core, in ns: null operations without pauses, the quickest round."""
    count = _CALIBRATED_ITEMS[core]
    columns = {"offset": np.arange(count), "length": np.full(count, 4096), "due_ns": np.zeros(count, dtype=np.int64)}
    batch = Batch(kind=np.full(count, READ_AT, dtype=np.uint8), slot=np.zeros(count, dtype=np.int32), **columns)
    best = float("inf")
    for _ in range(_CALIBRATIONS[core]):
        start, files = StartGate(), make_files([FileSlot(path=b"null")], backend=NullBackend(), core=core)
        start.open(time.monotonic_ns())
        lane = make_lane(files, pace=LoopPace.NONE, start=start, stop=StopFlag())
        lane.submit(batch)
        lane.finish()
        lane.run()
        done = lane.collect()
        if done is not None and done.count:
            best = min(best, float(done.end_ns[-1] - done.begin_ns[0]) / done.count)
    return best
