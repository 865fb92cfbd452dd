"""The digest of the work of a capture: equal for the same work, regardless of its storage."""

from __future__ import annotations

import hashlib

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from dxt_replay.traces.measures.operation_rows import ROW_COLUMNS, operation_rows
from dxt_replay.traces.schema import codes
from dxt_replay.traces.store.reader import Capture

_SPAN_COLUMNS = ("rank", "thread", "step", "start_ns", "end_ns")


def capture_digest(capture: Capture) -> str:
    """SHA-256 over operations, files and spans of a capture or a part of one, as 64 hexadecimal digits.

    One pass over the operations; where row groups end does not matter. Raises: CaptureError for a damaged part.
    """
    columns = {name: hashlib.sha256() for name in ROW_COLUMNS}
    ranks = []
    for rows in operation_rows(capture):
        ranks.append((rows.rank, len(rows)))
        for name, digest in columns.items():
            digest.update(np.ascontiguousarray(getattr(rows, name)).data)
    counted: dict[int, int] = {}
    for rank, rows_of_rank in ranks:
        counted[rank] = counted.get(rank, 0) + rows_of_rank
    whole = hashlib.sha256(repr((sorted(counted.items()), capture.ranks)).encode())
    for digest in columns.values():
        whole.update(digest.digest())
    for part in (_files(capture.files), *_spans(capture.spans)):
        whole.update(hashlib.sha256(part).digest())
    return whole.hexdigest()


def _files(files: pa.Table) -> bytes:
    paths = "\0".join(files["path"].to_pylist()).encode("utf-8", "surrogatepass")
    return paths + np.ascontiguousarray(files["size"].to_numpy()).tobytes()


def _spans(spans: pa.Table) -> list[bytes]:
    numbers = [pc.fill_null(spans[name], -1).to_numpy() for name in _SPAN_COLUMNS]
    return [np.ascontiguousarray(column).tobytes() for column in (*numbers, codes(spans, "kind"))]
