"""Writes a capture for fio: an iolog (version 3) per rank and lane, a job file for all, and a script that runs it.

Format: "Trace file format v3" of fio's HOWTO. A line is `<time> <file> add|open|close` or
`<time> <file> read|write <offset> <length>`. Facts that the HOWTO leaves out, from fio's iolog.c and runs of fio 3.33:
times are in microseconds; the line after one at time 0 does not wait, so the first time here is 1; a name ends at white
space and after 256 bytes; a length has 32 bits.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.export._row_text import Part, Texts, row_text
from dxt_replay.profiler_merge.export.exported import Exported, ExportedFile
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.output import DirectoryKind, new_directory, refusal
from dxt_replay.traces.schema import OPS, READ, WRITE, codes
from dxt_replay.traces.stable_order import places_in_groups
from dxt_replay.traces.store.rank_pieces import rank_pieces, work_of
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_US
from dxt_replay.traces.workers.workers import ALONE, Workers

JOB_FILE = "replay.fio"
SCRIPT = "replay.sh"
DIRECTORIES = "directories"
NAMES = "names"
"""Folder of links to files whose own names fio cannot read from an iolog."""

LONGEST_CALL = 1 << 30
"""Bytes of one fio action: one call of Linux transfers less than 2 GiB, and fio's buffer is as large as the longest
action."""

SLICE_ROWS = 1 << 14
"""Rows of a lane whose actions are formatted at a time."""

MOST_JOBS = 4096
"""FIO_MAX_JOBS of fio: most jobs of one fio process."""

ZERO_LENGTH = "zero_length"
OFFSET_NOT_KNOWN = "offset_not_known"
NOT_REPLAYED = "not_replayed"

_MARK = "; written by dxt-replay export"
_HEADER = "fio version 3 iolog\n"
_OPS = Texts([name.encode() for name in OPS])
_READABLE_NAME = re.compile(rb"[!-~]{1,255}")
_IOLOG_GLOB = "rank-*-lane-*.iolog"

_JOB_HEAD = f"""{_MARK}: one job per recorded lane, at the recorded times
; run {SCRIPT}, or `fio {JOB_FILE}` in this directory; needs fio 3.31 or newer
[global]
ioengine=psync
iodepth=1
thread=1
; leave the page cache as it is, as dxt-replay run does without --cold
invalidate=0
replay_no_stall=0
"""

_SCRIPT = f"""#!/bin/sh
# written by dxt-replay export: options for fio may follow, as in `./{SCRIPT} --output-format=json`
cd -- "$(dirname -- "$0")" || exit 1
# directories of files that the capture writes: fio makes files, but no directories
xargs -0 -r mkdir -p -- < {DIRECTORIES} || exit 1
exec fio "$@" {JOB_FILE}
"""

Mask = Callable[[pa.RecordBatch], np.ndarray]


@dataclass(slots=True, kw_only=True)
class _Lane:
    """An iolog being written. `last_use` maps file_id to the place of its last row among those of the rank."""

    path: Path
    last_use: dict[int, int] = field(default_factory=dict)
    open_files: set[int] = field(default_factory=set)
    actions: int = 0


def write_fio(
    capture: Capture,
    folder: Path,
    *,
    paths: Sequence[bytes],
    replayed: Mask,
    force: bool = False,
    workers: Workers = ALONE,
) -> Exported:
    """Write the reads and writes of `capture` into `folder`; the capture's first start is at 1 us in fio's time.

    `paths`: by file_id, the path at which fio finds the file (from `replay.target.placement`).
    `replayed`: boolean mask of the rows of a batch that a replay issues, one layer of each file (from
    `replay.plan.chosen_layers`). A lane opens a file before its first operation on it and closes it after the last.
    Memory: a row group, and a number per lane and file.
    Raises: CaptureError when the capture is damaged or has nothing for fio; TargetError when `folder` exists and not
    `force`, holds something else, or cannot be written.
    """
    try:
        with new_directory(folder, FIO_EXPORT, force=force) as working:
            source = _Source(capture=capture, replayed=replayed, last_name=_last_names(capture))
            work = _RankWork(source=source, folder=working, paths=paths, zero_ns=capture.time_span_ns[0])
            lanes: list[_Written] = []
            directories: set[bytes] = set()
            left_out: Counter[str] = Counter()
            pieces = rank_pieces(capture, workers.piece_operations)
            with workers.results(work, pieces, operations=work_of(capture)) as results:
                for more, written_to, left in results:
                    lanes += more
                    directories |= written_to
                    left_out += left
            if not lanes:
                raise CaptureError(
                    f"{capture.named} has no read or write that moved a byte, so fio has nothing to replay"
                )
            jobs = (f"\n[{lane.path.stem}]\nread_iolog={lane.path.name}\n" for lane in lanes)
            (working / DIRECTORIES).write_bytes(b"".join(name + b"\0" for name in sorted(directories)))
            (working / SCRIPT).write_text(_SCRIPT)
            (working / SCRIPT).chmod(0o755)
            (working / JOB_FILE).write_text(_JOB_HEAD + "".join(jobs))
            files = [
                ExportedFile(path=str(folder / lane.path.name), entries=lane.actions, bytes=lane.path.stat().st_size)
                for lane in lanes
            ]
    except OSError as error:
        raise refusal(error, folder) from error
    return Exported(
        format="fio",
        output=str(folder),
        operations=capture.operation_count() - sum(left_out.values()),
        files=tuple(files),
        left_out={reason: count for reason, count in sorted(left_out.items()) if count},
        notes=_notes(folder, lanes, left_out),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Written:
    """An iolog, and the actions in it."""

    path: Path
    actions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _RankWork:
    """Writes the iologs of some ranks into `folder`.

    Returns: the iologs, the directories of the files that they write, and the operations left out by reason."""

    source: _Source
    folder: Path
    paths: Sequence[bytes]
    zero_ns: int

    def __call__(self, ranks: tuple[int, ...]) -> tuple[list[_Written], set[bytes], Counter[str]]:
        names = _Names(self.folder, self.paths)
        left_out: Counter[str] = Counter()
        lanes = [
            _Written(path=lane.path, actions=lane.actions)
            for rank in ranks
            for lane in _write_rank(self.source, rank, self.folder, names, self.zero_ns, left_out)
        ]
        return lanes, names.written_directories, left_out


class _Names:
    """File names for the iologs, and the directories that must exist before files in them are written."""

    def __init__(self, folder: Path, paths: Sequence[bytes]) -> None:
        self._folder = folder
        self._paths = paths
        self._given: dict[int, str] = {}
        self.written_directories: set[bytes] = set()

    def __getitem__(self, file_id: int) -> str:
        """The file's path, or a link to it: fio's names hold no white space and no more than 256 bytes."""
        if file_id not in self._given:
            path = self._paths[file_id]
            if _READABLE_NAME.fullmatch(path):
                self._given[file_id] = path.decode("ascii")
            else:
                self._given[file_id] = f"{NAMES}/{file_id}"
                (self._folder / NAMES).mkdir(exist_ok=True)
                with suppress(FileExistsError):  # another worker made it
                    os.symlink(path, self._folder / NAMES / str(file_id))
        return self._given[file_id]

    def will_write(self, file_ids: Collection[int]) -> None:
        self.written_directories.update(os.path.dirname(self._paths[file_id]) for file_id in file_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """The exported files. `last_name`: by file_id, the file that it was last renamed to, else itself."""

    capture: Capture
    replayed: Mask
    last_name: np.ndarray


def _last_names(capture: Capture) -> np.ndarray:
    """fio has no rename, so a file has its last name from the start: reads then find what was written."""
    last: np.ndarray = np.arange(capture.files.num_rows, dtype=np.int32)
    following: dict[int, int] = {}
    for rank in capture.ranks:
        used = capture.usage(rank)
        renames = codes(used, "op") == OPS.index("rename")
        pairs = zip(used["file_id"].to_numpy()[renames], used["other_file_id"].to_numpy()[renames], strict=True)
        following |= {int(old): int(new) for old, new in pairs}
    for file_id in following:
        seen = {file_id}
        while (new := following.get(int(last[file_id]), -1)) not in seen and 0 <= new < len(last):
            last[file_id] = new
            seen.add(new)
    return last


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rows:
    """Columns (n,) of the operations of one batch that fio gets; the batch is in start order."""

    op: np.ndarray
    lane: np.ndarray
    file_id: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    start_ns: np.ndarray


def _write_rank(
    source: _Source, rank: int, folder: Path, names: _Names, zero_ns: int, left_out: Counter[str]
) -> list[_Lane]:
    """The lanes of a rank that transfer data, ascending. Reads the rank twice, because fio adds all files first."""
    lanes: dict[int, _Lane] = {}
    before = 0
    for rows in _rows(source, rank, left_out):
        _note_last_uses(rows, before, lanes, folder, rank)
        names.will_write(np.unique(rows.file_id[rows.op == WRITE]).tolist())
        before += len(rows.op)
    for lane in lanes.values():
        head = [f"1 {names[file_id]} add\n" for file_id in lane.last_use]
        lane.path.write_text(_HEADER + "".join(head), encoding="ascii")
        lane.actions = len(head)
    before = 0
    for rows in _rows(source, rank, Counter()):
        for number in np.unique(rows.lane).tolist():
            lane = lanes[number]
            places = np.flatnonzero(rows.lane == number)
            with open(lane.path, "ab") as file:
                for begin in range(0, len(places), SLICE_ROWS):
                    part = places[begin : begin + SLICE_ROWS]
                    text, actions = _actions(rows, part, before, lane, names, zero_ns)
                    file.write(text)
                    lane.actions += actions
        before += len(rows.op)
    return [lane for _, lane in sorted(lanes.items())]


def _rows(source: _Source, rank: int, left_out: Counter[str]) -> Iterator[_Rows]:
    """The operations of a rank for fio, a batch at a time; operations left out are counted by reason."""
    names = ["op", "api", "origin", "lane", "file_id", "offset", "length", "start_ns"]
    for batch in source.capture.operations(rank, columns=names):
        op = codes(batch, "op")
        chosen = source.replayed(batch)
        columns = {name: batch.column(name).to_numpy() for name in names[3:]}
        columns["file_id"] = source.last_name[columns["file_id"]]
        empty = chosen & ((columns["length"] == 0) | ~np.isin(op, (READ, WRITE)))
        lost = chosen & ~empty & (columns["offset"] < 0)
        left_out[NOT_REPLAYED] += int((~chosen).sum())
        left_out[ZERO_LENGTH] += int(empty.sum())
        left_out[OFFSET_NOT_KNOWN] += int(lost.sum())
        kept = chosen & ~empty & ~lost
        yield _Rows(op=op[kept], **{name: column[kept] for name, column in columns.items()})


def _note_last_uses(rows: _Rows, before: int, lanes: dict[int, _Lane], folder: Path, rank: int) -> None:
    for number in np.unique(rows.lane).tolist():
        if number not in lanes:
            lanes[number] = _Lane(path=folder / f"rank-{rank}-lane-{number}.iolog")
        places = np.flatnonzero(rows.lane == number)[::-1]
        files, last = np.unique(rows.file_id[places], return_index=True)
        lanes[number].last_use.update(zip(files.tolist(), (before + places[last]).tolist(), strict=True))


def _actions(
    rows: _Rows, places: np.ndarray, before: int, lane: _Lane, names: _Names, zero_ns: int
) -> tuple[memoryview, int]:
    """The text of the actions of the rows at `places`, all of one lane, and their number."""
    file_id = rows.file_id[places]
    files, first, name = np.unique(file_id, return_index=True, return_inverse=True)
    last = len(places) - 1 - np.unique(file_id[::-1], return_index=True)[1]
    opened, closed = np.zeros((2, len(places)), dtype=bool)
    opened[first] = [file not in lane.open_files for file in files.tolist()]
    last_use = np.array([lane.last_use[file] for file in files.tolist()])
    closed[last] = last_use == before + places[last]
    lane.open_files.update(files.tolist())
    lane.open_files.difference_update(files[closed[last]].tolist())

    # a long transfer is several calls
    calls = -(-rows.length[places] // LONGEST_CALL)
    row = np.repeat(np.arange(len(places)), calls)
    done = places_in_groups(calls) * LONGEST_CALL
    time_us = ((rows.start_ns[places] - zero_ns) // NS_PER_US + 1)[row]
    texts, of_call = Texts([f" {names[file]}".encode() for file in files.tolist()]), name.reshape(-1)[row]
    opens = opened[row] & (done == 0)
    closes = closed[row] & np.append(row[1:] != row[:-1], True)
    parts = [
        Part(b"", time_us, present=opens),
        Part(b"", of_call, texts=texts, present=opens),
        Part(b" open\n", present=opens),
        Part(b"", time_us),
        Part(b"", of_call, texts=texts),
        Part(b" ", rows.op[places][row], texts=_OPS),
        Part(b" ", rows.offset[places][row] + done),
        Part(b" ", np.minimum(LONGEST_CALL, rows.length[places][row] - done)),
        Part(b"\n"),
        Part(b"", time_us, present=closes),
        Part(b"", of_call, texts=texts, present=closes),
        Part(b" close\n", present=closes),
    ]
    text, _ = row_text(len(row), parts)
    return text, len(row) + int(opens.sum() + closes.sum())


def _objection(folder: Path) -> str | None:
    """Why a directory is not an earlier export with nothing else in it; None if it is. Raises: OSError."""
    job = folder / JOB_FILE
    if not (job.is_file() and job.read_bytes().startswith(_MARK.encode())):
        return "is not an export for fio" if any(folder.iterdir()) else None
    ours = {path.name for path in folder.glob(_IOLOG_GLOB)} | {JOB_FILE, SCRIPT, DIRECTORIES, NAMES}
    foreign = [path.name for path in folder.iterdir() if path.name not in ours]
    if (folder / NAMES).is_dir():
        foreign += [f"{NAMES}/{path.name}" for path in (folder / NAMES).iterdir() if not path.is_symlink()]
    return f"holds {foreign[0]}, which the export did not write" if foreign else None


FIO_EXPORT = DirectoryKind(name="an export for fio", objection=_objection)
"""Exports for fio as outputs: what --force may replace."""


def _notes(folder: Path, lanes: Sequence[_Written], left_out: Counter[str]) -> tuple[str, ...]:
    notes = [f"replay it with {folder / SCRIPT}"]
    if left_out[ZERO_LENGTH]:
        notes.append(f"{left_out[ZERO_LENGTH]} operations that moved no byte are left out: fio has no such action")
    if left_out[OFFSET_NOT_KNOWN]:
        notes.append(f"{left_out[OFFSET_NOT_KNOWN]} operations are left out because their offset was not recorded")
    if left_out[NOT_REPLAYED]:
        notes.append(
            f"{left_out[NOT_REPLAYED]} operations are left out, since dxt-replay run does not issue them either"
        )
    if len(lanes) > MOST_JOBS:
        notes.append(f"{JOB_FILE} has {len(lanes)} jobs, and one fio runs at most {MOST_JOBS}: divide it among several")
    return tuple(notes)
