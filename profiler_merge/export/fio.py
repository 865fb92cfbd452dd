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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.export.exported import Exported, ExportedFile
from dxt_replay.profiler_merge.export.row_text import SLICE_ROWS, bytes_of, if_known, joined
from dxt_replay.traces.errors import CaptureError
from dxt_replay.traces.output import DirectoryKind, new_directory, refusal
from dxt_replay.traces.schema import OPS, READ, WRITE, codes
from dxt_replay.traces.stable_order import places_in_groups, runs, stable_order
from dxt_replay.traces.store.reader import Capture
from dxt_replay.traces.units import NS_PER_US

JOB_FILE = "replay.fio"
SCRIPT = "replay.sh"
DIRECTORIES = "directories"
NAMES = "names"
"""Folder of links to files whose own names fio cannot read from an iolog."""

LONGEST_CALL = 1 << 30
"""Bytes of one fio action: one call of Linux transfers less than 2 GiB, and fio's buffer is as large as the longest
action."""

MOST_JOBS = 4096
"""FIO_MAX_JOBS of fio: most jobs of one fio process."""

ZERO_LENGTH = "zero_length"
OFFSET_NOT_KNOWN = "offset_not_known"
NOT_REPLAYED = "not_replayed"

_MARK = "; written by dxt-replay export"
_HEADER = "fio version 3 iolog\n"
_READABLE_NAME = re.compile(rb"[!-~]{1,255}")
_IOLOG_GLOB = "rank-*-lane-*.iolog"

_JOB_HEAD = f"""{_MARK}: one job per recorded lane, at the recorded times
; run {SCRIPT}, or `fio {JOB_FILE}` in this directory; needs fio 3.31 or newer
[global]
ioengine=psync
iodepth=1
thread=1
; leave the page cache as it is, as dxt-replay run --warm does
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
Columns = dict[str, np.ndarray]
"""`op`, `lane`, `file_id`, `offset`, `length` and `start_ns` (n,) of the operations of a batch, in start order."""


@dataclass(slots=True, kw_only=True)
class _Lane:
    """An iolog being written. `last_use` maps file_id to the place of its last row among those of the rank."""

    path: Path
    last_use: dict[int, int] = field(default_factory=dict)
    open_files: set[int] = field(default_factory=set)
    actions: int = 0


def write_fio(
    capture: Capture, folder: Path, *, paths: Sequence[bytes], replayed: Mask, force: bool = False
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
            writer = _Writer(capture, working, paths, replayed)
            lanes = [lane for rank in capture.ranks for lane in writer.write_rank(rank)]
            if not lanes:
                raise CaptureError(
                    f"{capture.named} has no read or write that moved a byte, so fio has nothing to replay"
                )
            jobs = (f"\n[{lane.path.stem}]\nread_iolog={lane.path.name}\n" for lane in lanes)
            directories = sorted({os.path.dirname(paths[file_id]) for file_id in writer.written})
            (working / DIRECTORIES).write_bytes(b"".join(name + b"\0" for name in directories))
            (working / SCRIPT).write_text(_SCRIPT)
            (working / SCRIPT).chmod(0o755)
            (working / JOB_FILE).write_text(_JOB_HEAD + "".join(jobs))
            files = [
                ExportedFile(path=str(folder / lane.path.name), entries=lane.actions, bytes=lane.path.stat().st_size)
                for lane in lanes
            ]
    except OSError as error:
        raise refusal(error, folder) from error
    left_out = writer.left_out
    return Exported(
        format="fio",
        output=str(folder),
        operations=capture.operation_count() - sum(left_out.values()),
        files=tuple(files),
        left_out={reason: count for reason, count in sorted(left_out.items()) if count},
        notes=_notes(folder, len(lanes), left_out),
    )


class _Writer:
    """Writes the iologs of one rank after the other.

    left_out: operations by reason.
    written: file_ids of the files that are written, whose directories must exist.
    """

    def __init__(self, capture: Capture, folder: Path, paths: Sequence[bytes], replayed: Mask) -> None:
        self.left_out: Counter[str] = Counter()
        self.written: set[int] = set()
        self._capture, self._folder, self._paths, self._replayed = capture, folder, paths, replayed
        self._last_name = _last_names(capture)
        self._zero_ns = capture.time_span_ns[0]
        self._names: dict[int, str] = {}

    def write_rank(self, rank: int) -> list[_Lane]:
        """The lanes of a rank that transfer data, ascending. Reads the rank twice, because fio adds all files first."""
        lanes: dict[int, _Lane] = {}
        before = 0
        for rows in self._rows(rank, self.left_out):
            for number, places in _by_lane(rows["lane"]):
                lane = lanes.setdefault(number, _Lane(path=self._folder / f"rank-{rank}-lane-{number}.iolog"))
                lane.last_use.update(zip(rows["file_id"][places].tolist(), (before + places).tolist(), strict=True))
            self.written.update(rows["file_id"][rows["op"] == WRITE].tolist())
            before += len(rows["op"])
        for lane in lanes.values():
            head = [f"1 {self._name(file_id)} add\n" for file_id in lane.last_use]
            lane.path.write_text(_HEADER + "".join(head), encoding="ascii")
            lane.actions = len(head)
        before = 0
        for rows in self._rows(rank, Counter()):
            for number, places in _by_lane(rows["lane"]):
                with open(lanes[number].path, "ab") as file:
                    for begin in range(0, len(places), SLICE_ROWS):
                        some = places[begin : begin + SLICE_ROWS]
                        file.write(
                            self._actions({name: rows[name][some] for name in rows}, before + some, lanes[number])
                        )
            before += len(rows["op"])
        return [lane for _, lane in sorted(lanes.items())]

    def _rows(self, rank: int, left_out: Counter[str]) -> Iterator[Columns]:
        """The operations of a rank for fio, a batch at a time; operations left out are counted by reason."""
        numbers = ("lane", "file_id", "offset", "length", "start_ns")
        for batch in self._capture.operations(rank, columns=["op", "api", "origin", *numbers]):
            rows = {"op": codes(batch, "op")} | {name: batch.column(name).to_numpy() for name in numbers}
            rows["file_id"] = self._last_name[rows["file_id"]]
            chosen = self._replayed(batch)
            empty = chosen & ((rows["length"] == 0) | ~np.isin(rows["op"], (READ, WRITE)))
            lost = chosen & ~empty & (rows["offset"] < 0)
            for reason, mask in ((NOT_REPLAYED, ~chosen), (ZERO_LENGTH, empty), (OFFSET_NOT_KNOWN, lost)):
                left_out[reason] += int(mask.sum())
            kept = chosen & ~empty & ~lost
            yield {name: column[kept] for name, column in rows.items()}

    def _name(self, file_id: int) -> str:
        """The file's path, or a link to it: fio's names hold no white space and no more than 256 bytes."""
        if file_id not in self._names:
            path = self._paths[file_id]
            if _READABLE_NAME.fullmatch(path):
                self._names[file_id] = path.decode("ascii")
            else:
                self._names[file_id] = f"{NAMES}/{file_id}"
                (self._folder / NAMES).mkdir(exist_ok=True)
                os.symlink(path, self._folder / NAMES / str(file_id))
        return self._names[file_id]

    def _actions(self, rows: Columns, places: np.ndarray, lane: _Lane) -> memoryview:
        """The text of the actions of rows of one lane, which are at `places` among those of the rank."""
        files, first, which = np.unique(rows["file_id"], return_index=True, return_inverse=True)
        opens, closes = np.zeros((2, len(places)), dtype=bool)
        opens[first] = [file not in lane.open_files for file in files.tolist()]
        closes = np.array([lane.last_use[file] for file in files.tolist()])[which] == places
        lane.open_files.update(files.tolist())
        lane.open_files.difference_update(rows["file_id"][closes].tolist())

        # a long transfer is several calls
        calls = -(-rows["length"] // LONGEST_CALL)
        row, number = np.repeat(np.arange(len(places)), calls), places_in_groups(calls)
        done = number * LONGEST_CALL
        opens, closes = opens[row] & (number == 0), closes[row] & (number == calls[row] - 1)
        lane.actions += len(row) + int(opens.sum() + closes.sum())
        time_us = pa.array((rows["start_ns"][row] - self._zero_ns) // NS_PER_US + 1).cast(pa.string())
        name = pa.array([self._name(file) for file in files.tolist()]).take(pa.array(which.reshape(-1)[row]))
        begin = pc.binary_join_element_wise(time_us, name, " ")
        length = np.minimum(LONGEST_CALL, rows["length"][row] - done)
        return bytes_of(
            joined(
                *if_known("", pc.if_else(pa.array(opens), begin, None), " open\n"),
                begin, " ", pa.array(OPS).take(pa.array(rows["op"][row])),
                " ", pa.array(rows["offset"][row] + done), " ", pa.array(length), "\n",
                *if_known("", pc.if_else(pa.array(closes), begin, None), " close\n"),
            )
        )  # fmt: skip


def _by_lane(lane: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """(lane, places of its rows), ascending."""
    order = stable_order(lane)
    for places in np.split(order, runs(lane[order])[1:]):
        if len(places):
            yield int(lane[places[0]]), places


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


def _notes(folder: Path, jobs: int, left_out: Counter[str]) -> tuple[str, ...]:
    notes = [f"replay it with {folder / SCRIPT}"]
    if left_out[ZERO_LENGTH]:
        notes.append(f"{left_out[ZERO_LENGTH]} operations that moved no byte are left out: fio has no such action")
    if left_out[OFFSET_NOT_KNOWN]:
        notes.append(f"{left_out[OFFSET_NOT_KNOWN]} operations are left out because their offset was not recorded")
    if left_out[NOT_REPLAYED]:
        notes.append(
            f"{left_out[NOT_REPLAYED]} operations are left out, since dxt-replay run does not issue them either"
        )
    if jobs > MOST_JOBS:
        notes.append(f"{JOB_FILE} has {jobs} jobs, and one fio runs at most {MOST_JOBS}: divide it among several")
    return tuple(notes)
