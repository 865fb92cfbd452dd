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
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.profiler_merge.export.exported import SLICE_ROWS, Exported, ExportedFile, bytes_of, if_known, joined
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


def write_fio(
    capture: Capture, folder: Path, *, paths: Sequence[bytes], replayed: Mask, force: bool = False
) -> Exported:
    """Write the reads and writes of `capture` into `folder`; the capture's first start is at 1 us in fio's time.

    `paths`: by file_id, the path at which fio finds the file (from `replay.target.placement`).
    `replayed`: boolean mask of the rows of a batch that a replay issues, one layer of each file (from
    `replay.plan.layers`). A lane opens a file before its first operation on it and closes it after the last.
    Memory: 40 bytes an operation of the largest rank.
    Raises: CaptureError when the capture is damaged or has nothing for fio; TargetError when `folder` exists and not
    `force`, holds something else, or cannot be written.
    """
    left_out: Counter[str] = Counter()
    written: set[int] = set()
    files = []
    zero_ns, last_name = capture.time_span_ns[0], _last_names(capture)
    try:
        with new_directory(folder, FIO_EXPORT, force=force) as working:
            names = _Names(working, paths)
            for rank in capture.ranks:
                rows = _rank_rows(capture, rank, last_name, replayed, left_out)
                written.update(np.unique(rows["file_id"][rows["op"] == WRITE]).tolist())
                order = stable_order(rows["lane"])
                for mine in np.split(order, runs(rows["lane"][order])[1:]):
                    if len(mine):
                        iolog = f"rank-{rank}-lane-{rows['lane'][mine[0]]}.iolog"
                        lane = {name: column[mine] for name, column in rows.items()}
                        with open(working / iolog, "wb") as stream:
                            actions = 0
                            for count, text in _actions(lane, names, zero_ns):
                                stream.write(text)
                                actions += count
                        size = (working / iolog).stat().st_size
                        files.append(ExportedFile(path=str(folder / iolog), entries=actions, bytes=size))
            if not files:
                raise CaptureError(
                    f"{capture.named} has no read or write that moved a byte, so fio has nothing to replay"
                )
            iologs = [Path(file.path) for file in files]
            jobs = (f"\n[{iolog.stem}]\nread_iolog={iolog.name}\n" for iolog in iologs)
            directories = sorted({os.path.dirname(paths[file_id]) for file_id in written})
            (working / DIRECTORIES).write_bytes(b"".join(name + b"\0" for name in directories))
            (working / SCRIPT).write_text(_SCRIPT)
            (working / SCRIPT).chmod(0o755)
            (working / JOB_FILE).write_text(_JOB_HEAD + "".join(jobs))
    except OSError as error:
        raise refusal(error, folder) from error
    return Exported(
        format="fio",
        output=str(folder),
        operations=capture.operation_count() - sum(left_out.values()),
        files=tuple(files),
        left_out={reason: count for reason, count in sorted(left_out.items()) if count},
        notes=_notes(folder, len(files), left_out),
    )


def _rank_rows(
    capture: Capture, rank: int, last_name: np.ndarray, replayed: Mask, left_out: Counter[str]
) -> dict[str, np.ndarray]:
    """`op`, `lane`, `file_id`, `offset`, `length` and `start_ns` of the operations of a rank for fio, in start order;
    others are counted by reason."""
    numbers = ("lane", "file_id", "offset", "length", "start_ns")
    parts = []
    for batch in capture.operations(rank, columns=["op", "api", "origin", *numbers]):
        rows = {"op": codes(batch, "op")} | {name: batch.column(name).to_numpy() for name in numbers}
        rows["file_id"] = last_name[rows["file_id"]]
        chosen = replayed(batch)
        empty = chosen & ((rows["length"] == 0) | ~np.isin(rows["op"], (READ, WRITE)))
        lost = chosen & ~empty & (rows["offset"] < 0)
        for reason, mask in ((NOT_REPLAYED, ~chosen), (ZERO_LENGTH, empty), (OFFSET_NOT_KNOWN, lost)):
            left_out[reason] += int(mask.sum())
        kept = chosen & ~empty & ~lost
        parts.append({name: column[kept] for name, column in rows.items()})
    none = np.zeros(0, dtype=np.int64)
    return {name: np.concatenate([none, *(part[name] for part in parts)]) for name in ("op", *numbers)}


class _Names(dict[int, str]):
    """The path of each file, or a link to it: fio's names hold no white space and no more than 256 bytes."""

    def __init__(self, folder: Path, paths: Sequence[bytes]) -> None:
        self._folder, self._paths = folder, paths

    def __missing__(self, file_id: int) -> str:
        path = self._paths[file_id]
        if _READABLE_NAME.fullmatch(path):
            self[file_id] = path.decode("ascii")
        else:
            self[file_id] = f"{NAMES}/{file_id}"
            (self._folder / NAMES).mkdir(exist_ok=True)
            os.symlink(path, self._folder / NAMES / str(file_id))
        return self[file_id]


def _actions(rows: dict[str, np.ndarray], names: _Names, zero_ns: int) -> Iterator[tuple[int, bytes | memoryview]]:
    """The text of the actions of a lane, and their number, in pieces."""
    files, first, which = np.unique(rows["file_id"], return_index=True, return_inverse=True)
    last = len(which) - 1 - np.unique(rows["file_id"][::-1], return_index=True)[1]
    by_use = [names[file] for file in files[np.argsort(first)].tolist()]
    yield len(files), (_HEADER + "".join(f"1 {name} add\n" for name in by_use)).encode("ascii")
    texts = pa.array([names[file] for file in files.tolist()])
    # a long transfer is several calls
    calls = -(-rows["length"] // LONGEST_CALL)
    row, number = np.repeat(np.arange(len(which)), calls), places_in_groups(calls)
    opens = (row == first[which][row]) & (number == 0)
    closes = (row == last[which][row]) & (number == calls[row] - 1)
    for begin in range(0, len(row), SLICE_ROWS):
        some = slice(begin, begin + SLICE_ROWS)
        mine, done, opened, closed = row[some], number[some] * LONGEST_CALL, opens[some], closes[some]
        time_us = pa.array((rows["start_ns"][mine] - zero_ns) // NS_PER_US + 1).cast(pa.string())
        head = pc.binary_join_element_wise(time_us, texts.take(pa.array(which.reshape(-1)[mine])), " ")
        text = joined(
            *if_known("", pc.if_else(pa.array(opened), head, None), " open\n"),
            head, " ", pa.array(OPS).take(pa.array(rows["op"][mine])), " ", pa.array(rows["offset"][mine] + done),
            " ", pa.array(np.minimum(LONGEST_CALL, rows["length"][mine] - done)), "\n",
            *if_known("", pc.if_else(pa.array(closed), head, None), " close\n"),
        )  # fmt: skip
        yield len(mine) + int(opened.sum() + closed.sum()), bytes_of(text)


def _last_names(capture: Capture) -> np.ndarray:
    """fio has no rename, so a file has its last name from the start: reads then find what was written."""
    last: np.ndarray = np.arange(capture.files.num_rows, dtype=np.int32)
    following: dict[int, int] = {}
    for batch in capture.operations(columns=["op", "file_id", "other_file_id"]):
        renames = batch.filter(pa.array(codes(batch, "op") == OPS.index("rename")))
        following |= dict(zip(renames["file_id"].to_pylist(), renames["other_file_id"].to_pylist(), strict=True))
    for file_id in following:
        seen = {file_id}
        while (new := following.get(int(last[file_id]), -1)) not in seen and 0 <= new < len(last):
            last[file_id] = new
            seen.add(new)
    return last


def _objection(folder: Path) -> str | None:
    """Why a directory is not an earlier export with nothing else in it; None if it is."""
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
