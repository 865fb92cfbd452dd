"""Offsets read and written over time in the busiest files, with as many operations as a picture holds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.queries import query
from dxt_replay.traces.store.reader import Capture

MOST_FILES = 16
MOST_POINTS = 4_000
"""Operations of all files together. A file with fewer than its share leaves the rest to the others."""

COLUMNS = ("rank", "start_ns", "end_ns", "offset", "length", "written")

_SPREADING = 2_654_435_761
"""2**32 divided by the golden ratio: its multiples pick about every n-th operation without a period of n."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FileOffsets:
    """A sample of one file's operations, rank after rank; int64 arrays (n,).

    written: 1 for a write, 0 for a read.
    operations: number of operations of the file, of which about one in `one_in` is in the sample.
    """

    file_id: int
    operations: int
    one_in: int
    rank: np.ndarray
    start_ns: np.ndarray
    end_ns: np.ndarray
    offset: np.ndarray
    length: np.ndarray
    written: np.ndarray


def file_offsets(capture: Capture, files: pa.Table, *, most_points: int = MOST_POINTS) -> tuple[FileOffsets, ...]:
    """Traced reads and writes of the MOST_FILES files with the most of them, the most first.

    `files`: the table of that name, of the same capture. Raises: CaptureError when a part is damaged.
    """
    counts = files["reads"].to_numpy() + files["writes"].to_numpy()
    busiest = [place for place in np.argsort(-counts, kind="stable")[:MOST_FILES].tolist() if counts[place]]
    operations = {files["file_id"][place].as_py(): int(counts[place]) for place in busiest}
    one_in, left = {}, most_points
    for place, (file_id, count) in enumerate(sorted(operations.items(), key=lambda item: item[1])):
        share = max(left // (len(operations) - place), 1)
        one_in[file_id] = -(-count // share)
        left -= min(count, share)
    if not operations:
        return ()
    chosen = ", ".join(f"({file_id}, {(1 << 32) // one_in[file_id]})" for file_id in operations)
    found = query(
        capture,
        f"""SELECT file_id, rank, start_ns, end_ns, "offset", length, (op = 'write')::INTEGER AS written FROM (
            SELECT file_id, rank, start_ns, end_ns, "offset", length, op, number, most,
                row_number() OVER (PARTITION BY file_id ORDER BY number) - 1 AS nth
            FROM transfers JOIN (VALUES {chosen}) AS chosen (file_id, most) USING (file_id) WHERE "offset" >= 0)
        WHERE nth * {_SPREADING} % {1 << 32} < most ORDER BY number""",
    )
    columns = {name: found[name].to_numpy().astype(np.int64) for name in found.column_names}
    file_ids = columns.pop("file_id")
    return tuple(
        FileOffsets(
            file_id=file_id,
            operations=count,
            one_in=one_in[file_id],
            **{name: column[file_ids == file_id] for name, column in columns.items()},
        )
        for file_id, count in operations.items()
    )
