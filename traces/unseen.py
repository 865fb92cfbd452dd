"""I/O of a job that no trace holds, and whether a capture may be judged by the rest: one rule for the whole product.

Page faults of mapped files and bytes on sockets are in no trace of calls. `dxt-replay record` counts them from outside.
In other logs the counters show that a file with data was opened and never read. If too little of a capture was traced,
or the share is unknown, no command says what storage cost.
"""

from __future__ import annotations

import json
import os
import stat
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.errors import LogError
from dxt_replay.traces.files import opened_only, probably_mapped
from dxt_replay.traces.output import RECORDING_MARK, UNSEEN
from dxt_replay.traces.schema import CaptureInfo, Coverage, Unseen
from dxt_replay.traces.text import listed
from dxt_replay.traces.units import format_bytes, format_counted

OVERHEAD_BYTES, OVERHEAD_SHARE = 4096, 0.02
"""Most bytes that a socket receives for an answer beside its body: headers and a share of a TLS handshake (4 KiB), and
the frames of TLS (29 bytes for each of up to 16 KiB, usually more than 1.4 KiB)."""

LEAST_COVERAGE = 0.99
"""Traced / counted share below which every total may be wrong by one per cent."""

NOTHING_RECORDED = Coverage(
    bytes=None, operations=None, unseen=(Unseen(kind="all", name="all files and peers", bytes=None),)
)
"""Coverage of a capture that was made of profiles alone."""

OBJECTS: Literal["objects"] = "objects"
"""Kind of I/O through calls of an object store: Darshan counts it, and no trace holds it."""

PROCESS: Literal["process"] = "process"
"""Kind of I/O of a process that left no log, or read more than its log explains."""

WRITTEN = "written"
"""Key of `made_by`: files that were opened and never read through a call, and that the job itself wrote."""

UNKNOWN_PEERS = "peers that the trace does not show"

MEMORY = "/dev/shm/"
"""Folder of shared memory: no storage is behind files that processes map there."""

_PAST_IT = "mapped, sendfile, copy_file_range, splice, io_uring or AIO"
"""How a file may have been read that was opened and not read by a recorded call."""


@dataclass(slots=True)
class StreamTotals:
    """Reads and writes of standard streams, which no figure of a capture includes: their number and bytes."""

    operations: int = 0
    bytes: int = 0

    def add(self, operations: int, moved: int) -> None:
        """Add operations that together moved `moved` bytes."""
        self.operations += operations
        self.bytes += moved

    def warnings(self) -> list[str]:
        """A warning if they moved much: nearly every program prints something."""
        if self.operations < 10_000 and self.bytes < 1 << 20:
            return []
        return [
            f"{format_counted(self.operations, 'operation')} on standard input, output and error "
            f"({format_bytes(self.bytes)}) are left out, since a pipe or a terminal is no storage. If a file was "
            "redirected to them, its I/O is missing from the capture: let the program open the file"
        ]


def recording_of(log: Path) -> Path | None:
    """The folder of the recording that a log belongs to, which may lie in year/month/day below that of its rank."""
    return next((folder for folder in log.absolute().parents[:6] if (folder / RECORDING_MARK).is_file()), None)


def _watch_files(logs: Iterable[Path]) -> list[Path]:
    """Where `dxt-replay record` wrote what it saw while it recorded these logs."""
    return [folder / UNSEEN for folder in dict.fromkeys(filter(None, map(recording_of, logs)))]


def watched(logs: Iterable[Path]) -> tuple[Unseen, ...]:
    """What `dxt-replay record` saw of mapped files and sockets while it recorded these logs.

    Raises: LogError where its file is damaged.
    """
    found: list[Unseen] = []
    for path in filter(Path.exists, _watch_files(logs)):
        try:
            content = json.loads(path.read_text(encoding="utf-8", errors="surrogateescape"))
            mapped = [("mapped", name, entry["bytes"]) for name, entry in content["mapped"].items()]
            for kind, name, moved in (*mapped, *(("socket", *pair) for pair in content["received"].items())):
                if not isinstance(moved, int) or moved < 0:
                    raise ValueError(f"{moved!r} bytes of {name}")
                if moved or kind == "socket":  # 0 of a mapped file: nothing was read yet at the last look
                    shown = name.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
                    found.append(Unseen(kind=kind, name=shown, bytes=moved))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise LogError(f"{path} is damaged ({error!r}): remove it, or record again") from error
    return tuple(found)


def recorder_notes(logs: Iterable[Path], name: Literal["notes", "hidden"]) -> list[str]:
    """What `dxt-replay record` noted of the job of these logs. `notes`: its status, killed processes, a set clock, said
    when it had ended. `hidden`: the programs that were seen with an io_uring or AIO ("cp by io_uring")."""
    found: list[str] = []
    for path in _watch_files(logs):
        with suppress(OSError, ValueError, AttributeError):
            found += map(str, json.loads(path.read_text("utf-8", "surrogateescape")).get(name, ()))
    return found


_TEMPORARY = ("/tmp", "/var/tmp")
"""Where programs make files of their own, as torch does for the error of each process that it spawns."""


def hidden_reads(programs: Iterable[str], files: pa.Table, job_ns: tuple[int, int]) -> tuple[Unseen, ...]:
    """Reads of these programs through calls that do not show them; none if every file was read to its end by others.

    libuv, below Node and uvloop, has an io_uring and reads no file by it. files, job_ns: as of `mapped_files`."""
    programs = list(programs)
    if not programs:
        return ()
    read = files["posix_bytes_read"].fill_null(0).to_numpy()
    in_part = any(
        moved
        and (there := _status(path)) is not None
        and moved < there.st_size
        and not there.st_mode & stat.S_IXUSR  # a program looks at the head of its own file
        and not _written(there, job_ns)
        for path, moved in zip(files["path"].to_pylist(), read.tolist(), strict=True)
    )
    if not in_part and not mapped_files(files, job_ns):
        return ()
    return tuple(Unseen(kind=PROCESS, name=name, bytes=None) for name in programs)


def mapped_files(files: pa.Table, job_ns: tuple[int, int], never: Collection[int] = ()) -> list[str]:
    """Files of a `FILES_SCHEMA` table that were opened and never read through a call, and hold something.

    job_ns: begin and end of the job, CLOCK_REALTIME. A file that was written meanwhile is not its input. never: ids of
    files that were not mapped, as their counters tell. Lock files and markers of a page hold nothing that matters. A
    file whose reads are booked to another (`_read_again`) was not mapped.
    """
    found, sizes = [], {}
    sure = probably_mapped(files)
    for file in np.flatnonzero(opened_only(files)).tolist():
        path = files["path"][file].as_py()
        there = None if file in never else _status(path)
        if there is None:
            here_and_gone = os.path.dirname(path) in _TEMPORARY
            found += [path] if sure[file] and file not in never and not here_and_gone else []
        elif (
            stat.S_ISREG(there.st_mode)
            and there.st_size
            and not _written(there, job_ns)
            and not path.startswith(MEMORY)
        ):
            found.append(path)
            sizes[path] = there.st_size
    moved = sum(
        pc.sum(files[f"{api}_bytes_{way}"]).as_py() or 0 for api in ("posix", "stdio") for way in ("read", "written")
    )
    surplus = _read_again(files) if sizes else Counter[int]()
    for path, size in list(sizes.items()):
        if surplus[size]:
            surplus[size] -= 1
            del sizes[path]
            found.remove(path)
    pages = {path: size for path, size in sizes.items() if size <= 4096}
    return [path for path in found if path not in pages or sum(pages.values()) > (1 - LEAST_COVERAGE) * moved]


def _read_again(files: pa.Table) -> Counter[int]:
    """Number of files by the bytes that were read of them beyond the whole file at each open.

    Where a thread opens a file while another closes one, Darshan 3.5.0 may book its reads to the closed one."""
    opens, moved = (files[f"posix_{name}"].fill_null(0).to_numpy() for name in ("opens", "bytes_read"))
    again = np.flatnonzero((opens > 0) & (moved > 0))
    stats = ((file, _status(files["path"][file].as_py())) for file in again.tolist())
    return Counter(int(moved[file]) - int(opens[file]) * there.st_size for file, there in stats if there is not None)


def _status(path: str) -> os.stat_result | None:
    """Of a file on this machine, now."""
    try:
        return os.stat(path)
    except (OSError, ValueError):
        return None


def _written(found: os.stat_result, job_ns: tuple[int, int]) -> bool:
    return job_ns[0] <= found.st_mtime_ns <= job_ns[1]


def all_unseen(seen_by_watch: Sequence[Unseen], mapped: Iterable[str]) -> tuple[Unseen, ...]:
    """What a recording saw, and the mapped files of which it does not know how much was read."""
    known = {each.name for each in seen_by_watch if each.kind == "mapped"}
    return (*seen_by_watch, *(Unseen(kind="mapped", name=path, bytes=None) for path in mapped if path not in known))


def received(peers: Mapping[str, int], of_unknown: int, moved: int, seen_by_watch: Sequence[Unseen]) -> list[Unseen]:
    """What a recording saw, and what a trace shows of bytes received through sockets.

    peers: bytes by "address:port". of_unknown: bytes of which nobody knows whether they came from outside the job.
    moved: bytes read and written by the operations of the trace.
    """
    found = {(each.kind, each.name): each for each in seen_by_watch}
    for peer, number in peers.items():
        known = found.get(("socket", peer))
        # Each may have missed a part: the watch looks now and then, and not every call that receives is traced.
        most = max(number, (known.bytes or 0) if known else 0)
        found["socket", peer] = Unseen(kind="socket", name=peer, bytes=most)
    matters = of_unknown > (1 - LEAST_COVERAGE) * (moved + of_unknown)
    if matters and not any(kind == "socket" for kind, _ in found):
        found["socket", UNKNOWN_PEERS] = Unseen(kind="socket", name=UNKNOWN_PEERS, bytes=None)
    return list(found.values())


def with_mapped(coverage: Coverage, counted_bytes: int, mapped_bytes: int) -> tuple[Coverage, int]:
    """A coverage in which the reads of mapped files count too, all of which were traced, and what it is a share of."""
    total = counted_bytes + mapped_bytes
    if mapped_bytes and (coverage.bytes is not None or not counted_bytes):
        traced = (coverage.bytes or 0.0) * counted_bytes + mapped_bytes
        coverage = replace(coverage, bytes=traced / total)
    return coverage, total


def with_unseen(coverage: Coverage, counted_bytes: int, unseen: tuple[Unseen, ...]) -> Coverage:
    """A coverage with what no counter holds in it. counted_bytes: what the coverage of bytes is a share of.

    with_unseen(Coverage(bytes=1.0, operations=1.0), 100, (Unseen(kind="mapped", name="/a", bytes=300),))
    # Coverage(bytes=0.25, operations=1.0, unseen=...)
    """
    if not unseen:
        return coverage
    missing = _bytes_of(unseen)
    # Whether operations of an object store are the traced ones or not is not known.
    objects = any(each.kind == OBJECTS for each in unseen)
    traced = (coverage.bytes or 0.0) * counted_bytes
    share: float | None = None
    if missing is not None and (coverage.bytes is not None or not counted_bytes):
        share = traced / (counted_bytes + missing) if counted_bytes + missing else None
    without = coverage.without_streams
    if without is not None:
        beside = replace(coverage, bytes=without[0], without_streams=None)
        traceable = round(traced / without[0]) if without[0] else 0
        operations = None if without[1] and objects else without[1]
        without = with_unseen(beside, traceable, unseen).bytes, operations
    operations = None if coverage.operations and objects else coverage.operations
    return replace(coverage, bytes=share, operations=operations, without_streams=without, unseen=unseen)


def _bytes_of(unseen: Iterable[Unseen]) -> int | None:
    """Their sum; None where one is not known."""
    moved = [each.bytes for each in unseen]
    return None if None in moved else sum(each or 0 for each in moved)


def without_requests(
    unseen: Sequence[Unseen], received: int, requests: int, peers: Collection[str], servers: Collection[str]
) -> tuple[Unseen, ...]:
    """What remains unseen where the requests of a job were recorded, which `received` so many bytes: they moved the
    bytes on the sockets to their servers, with up to OVERHEAD_BYTES of headers and encryption each and OVERHEAD_SHARE.

    Sockets are those to the `peers` of recorded connections ("address:port"), then those to the ports of the `servers`
    ("host:port") of requests whose connections are not known.
    """
    left = int(received * (1 + OVERHEAD_SHARE)) + OVERHEAD_BYTES * requests
    ports = {server.rpartition(":")[2] for server in servers}
    found = list(unseen)
    for mine in (peers.__contains__, lambda name: name.rpartition(":")[2] in ports):
        for place, each in enumerate(found):
            if each.kind == "socket" and each.bytes and mine(each.name):
                explained = min(each.bytes, left)
                left -= explained
                found[place] = replace(each, bytes=each.bytes - explained)
    return tuple(each for each in found if each.kind != "socket" or each.bytes is None or each.bytes)


def with_requests(coverage: Coverage, counted_bytes: int, moved: int, unseen: tuple[Unseen, ...]) -> Coverage:
    """A coverage (`with_unseen`) with requests that moved `moved` bytes, all recorded, after which `unseen` remains."""
    before, after = _bytes_of(coverage.unseen), _bytes_of(unseen)

    def share(found: float | None) -> float | None:
        if before is None or after is None or (found is None and counted_bytes):
            return None
        total = counted_bytes + moved + after
        return min(((found or 0.0) * (counted_bytes + before) + moved) / total, 1.0) if total else 1.0

    without = coverage.without_streams
    return replace(
        coverage,
        bytes=share(coverage.bytes),
        operations=1.0 if coverage.operations is None and not counted_bytes else coverage.operations,
        without_streams=None if without is None else (share(without[0]), without[1]),
        unseen=unseen,
    )


def unseen_of(info: CaptureInfo, files: pa.Table) -> tuple[Unseen, ...]:
    """What no trace of a capture holds; of one of an older release, the files that were positioned and never read."""
    if info.coverage.unseen:
        return tuple(each for each in info.coverage.unseen if each.bytes != 0)
    paths = files["path"].filter(pa.array(probably_mapped(files))).to_pylist()
    written = info.made_by.get(WRITTEN, ())
    return tuple(Unseen(kind="mapped", name=path, bytes=None) for path in paths if path not in written)


def coverage_json(coverage: Coverage) -> dict[str, Any]:
    """The object that commands print."""
    return {
        "bytes": coverage.bytes,
        "operations": coverage.operations,
        "traceable": list(coverage.traceable),
        "unseen": [asdict(each) for each in coverage.unseen],
    }


def nothing_recorded(unseen: Iterable[Unseen]) -> bool:
    """Whether no I/O was recorded, so that a capture without operations says nothing of the job's."""
    return any(each.kind == "all" for each in unseen)


def _unexplained(each: Unseen) -> bool:
    """Whether nobody saw how a file was read, nor how much of it."""
    return each.kind == "mapped" and each.bytes is None


def why_not_judged(coverage: Coverage, unseen: Sequence[Unseen]) -> str | None:
    """Why what storage cost a run is not known, a clause to follow a colon; None where the trace holds enough.

    2 files were opened and never read by a call that the recorder sees (mapped, sendfile, ..., io_uring or AIO)
    """
    if nothing_recorded(unseen):
        return "no I/O was recorded"
    if unknown := sum(map(_unexplained, unseen)):
        were = "was" if unknown == 1 else "were"
        files = format_counted(unknown, "file")
        return f"{files} {were} opened and never read by a call that the recorder sees ({_PAST_IT})"
    if through := listed([each.name for each in unseen if each.kind == OBJECTS and each.bytes is None]):
        return f"bytes were moved by {through} calls, and whether calls in the trace made them is not known"
    if processes := listed([each.name for each in unseen if each.kind == PROCESS]):
        return f"data were read that no log of the job's processes holds ({processes})"
    if any(each.bytes is None for each in unseen):
        return f"bytes were received through sockets from {UNKNOWN_PEERS}"
    held_share, _ = coverage.traceable  # streams are rebuilt, with the times that were counted of them
    if held_share is None or held_share >= LEAST_COVERAGE:
        return None
    beside = " and ".join(
        f"{format_bytes(moved)} through {how}"
        for kind, how in (("mapped", "mapped files"), ("socket", "sockets"), (OBJECTS, "calls of an object store"))
        if (moved := sum(each.bytes or 0 for each in unseen if each.kind == kind))
    )
    held = f"the trace holds {100 * held_share:.1f} % of the bytes"
    return f"{held}; at least {beside} are not in it" if beside else held


def unseen_warnings(unseen: Sequence[Unseen]) -> list[str]:
    """What was read past the trace, with the names, and what follows."""
    said = []
    ways = {
        "mapped": "memory-mapped",
        "": f"opened and never read by a call that the recorder sees ({_PAST_IT})",
        "socket": "read from sockets",
        OBJECTS: "moved by calls of an object store",
        PROCESS: "read by processes without a log, or past it (--with strace shows them, io_uring and AIO excepted)",
    }
    for kind, how in ways.items():
        mine = [each for each in unseen if each.bytes != 0 and kind == ("" if _unexplained(each) else each.kind)]
        mine.sort(key=lambda each: -(each.bytes or 0))
        if mine:
            shown = [each.name if each.bytes is None else f"{each.name} ({format_bytes(each.bytes)})" for each in mine]
            said.append(
                f"{how}: {listed(shown)}. No trace holds these bytes: a replay leaves them out, and they are no part "
                "of its time"
            )
    return said
