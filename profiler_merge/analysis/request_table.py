"""The table of requests to object stores: how they were answered, and when the answers began."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from dxt_replay.profiler_merge.analysis.table_formats import table_of
from dxt_replay.profiler_merge.analysis.tables import TABLES
from dxt_replay.traces.schema import APIS, LEAST_REFUSED, OPS, REFUSED, codes
from dxt_replay.traces.store.reader import Capture

_REQUESTS = (APIS.index("S3"), REFUSED)
_UNKNOWN = -1
_COLUMNS = ("op", "api", "length", "start_ns", "end_ns", "status", "first_byte_ns")


def request_table(capture: Capture) -> pa.Table:
    """A row for each operation and status (`TABLES["requests"]`), in this order; times are exact percentiles.

    Memory: 16 bytes for each request. Raises: CaptureError when the capture is damaged.
    """
    times: dict[tuple[int, int], list[np.ndarray]] = {}
    moved: dict[tuple[int, int], int] = {}
    for batch in capture.operations(columns=_COLUMNS):
        rows = np.flatnonzero(np.isin(codes(batch, "api"), _REQUESTS))
        if not len(rows):
            continue
        op = codes(batch, "op")[rows]
        length, start, end = (batch[name].to_numpy()[rows] for name in ("length", "start_ns", "end_ns"))
        status, first = (batch[name].fill_null(_UNKNOWN).to_numpy()[rows] for name in ("status", "first_byte_ns"))
        for kind in sorted(set(zip(op.tolist(), status.tolist(), strict=True))):
            chosen = (op == kind[0]) & (status == kind[1])
            times.setdefault(kind, []).append(np.stack([first[chosen], (end - start)[chosen]]))
            moved[kind] = moved.get(kind, 0) + int(length[chosen].clip(0).sum())
    found = ((kind, np.concatenate(parts, axis=1)) for kind, parts in sorted(times.items()))
    return table_of((_row(*kind, moved[kind], *both) for kind, both in found), TABLES["requests"].schema)


def _row(op: int, status: int, moved: int, first_ns: np.ndarray, took_ns: np.ndarray) -> dict[str, object]:
    known = first_ns[first_ns >= 0]
    return {
        "op": OPS[op],
        "status": None if status == _UNKNOWN else status,
        "answer": _answer(status),
        "requests": len(took_ns),
        "bytes": moved,
        "first_byte_p50_ns": _percentile(known, 50),
        "first_byte_p99_ns": _percentile(known, 99),
        "time_p50_ns": _percentile(took_ns, 50),
        "time_p99_ns": _percentile(took_ns, 99),
    }


def _answer(status: int) -> str | None:
    if status == _UNKNOWN:
        return None
    return "failed" if status == 0 else "error" if status >= LEAST_REFUSED else "done"


def _percentile(times_ns: np.ndarray, percent: int) -> int | None:
    """The smallest time that so many per cent do not exceed."""
    return int(np.percentile(times_ns, percent, method="inverted_cdf")) if len(times_ns) else None
