"""Reads operation logs of s3dlio and warp-replay: tab-separated, in Zstandard (`src/s3_logger.rs` of s3dlio).

The columns are idx, thread, op, client_id, n_objects, bytes, endpoint, file, error, start, first_byte, end and
duration_ns; lines that begin with `#` are comments. The log has no offset of a GET_RANGE, no HTTP status and no process
id: they stay unknown. A client is a rank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path

from dxt_replay.profiler_merge.tracers.requests.request_rows import LoggedRequest, RecordedRequests, RequestRows
from dxt_replay.profiler_merge.tracers.text_lines import Damage, text_lines
from dxt_replay.profiler_merge.tracers.traced_job import TracedProcess
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.units import format_counted

_CALLS = {
    "GET": "GetObject", "GET_RANGE": "GetObject", "PUT": "PutObject", "HEAD": "HeadObject", "STAT": "HeadObject",
    "LIST": "ListObjectsV2", "DELETE": "DeleteObject",
}  # fmt: skip
_COLUMNS = ("thread", "op", "client_id", "bytes", "file", "endpoint", "error", "start", "first_byte", "end")
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_LARGEST_ID = (1 << 63) - 1


def read_op_logs(files: Sequence[Path]) -> RecordedRequests:
    """All requests to S3 in the logs of a job; other stores are left out. Raises: LogError."""
    rows, damage, others = RequestRows(), Damage(), Counter[str]()
    processes: list[TracedProcess] = []
    clients: dict[tuple[int, str], TracedProcess] = {}
    ranged = 0
    for trace, path in enumerate(files):
        columns: dict[str, int] = {}
        for line in text_lines(path, damage):
            fields = line.decode("utf-8", "surrogateescape").split("\t")
            if line.startswith(b"#") or not line:
                continue
            if not columns:
                columns = {name: place for place, name in enumerate(fields)}
                if absent := [name for name in _COLUMNS if name not in columns]:
                    raise LogError(f"{path} has no column {absent[0]}: it is not an operation log of s3dlio")
                continue
            try:
                of_line = {name: fields[place] for name, place in columns.items()}
                request = _request(of_line)
            except (ValueError, IndexError):
                damage.lines += 1
                continue
            if request is None:
                others[of_line["endpoint"].partition("//")[0]] += 1
                continue
            client = clients.get((trace, of_line["client_id"]))
            if client is None:
                client = TracedProcess(number=len(processes), pid=0, trace=trace, started_ns=request.start_ns)
                clients[trace, of_line["client_id"]] = client
                processes.append(client)
            client.started_ns = min(client.started_ns, request.start_ns)
            request.process = client.number
            ranged += of_line["op"] == "GET_RANGE"
            rows.add(request)
    found = rows.rows()
    warnings = [*damage.warnings(), *rows.warnings()]
    warnings += [
        f"{format_counted(count, 'operation')} on {scheme}// left out: only requests to S3 are read"
        for scheme, count in sorted(others.items())
    ]
    if ranged:
        warnings.append(
            f"{format_counted(ranged, 'ranged read')} without an offset: the log does not state it, and a replay reads "
            "from the begin of the object"
        )
    for process in processes:
        process.executed = True
    return RecordedRequests(
        kind="s3dlio", files=tuple(files), processes=processes, roots=[-process.number for process in processes],
        rows=found, paths=rows.paths, sizes=rows.sizes, warnings=warnings,
    )  # fmt: skip


def _request(fields: dict[str, str]) -> LoggedRequest | None:
    """The request of a line; None for a store that is not S3."""
    if not fields["endpoint"].startswith(("s3:", "http:", "https:")):
        return None
    name, moved = fields["op"], int(fields["bytes"])
    start_ns, end_ns = _time_ns(fields["start"]), _time_ns(fields["end"])
    if not 0 <= start_ns <= end_ns or moved < 0:
        raise ValueError(fields)
    path = f"s3://{fields['file'].removeprefix('s3://').lstrip('/')}"
    if name == "LIST" and not path.endswith("/"):
        path = path.rpartition("/")[0] + "/"
    failed = bool(fields["error"])
    return LoggedRequest(
        process=-1, thread=int(fields["thread"]) & _LARGEST_ID, name=_CALLS.get(name, name), path=path,
        start_ns=start_ns, end_ns=end_ns, offset=None if name == "GET_RANGE" else 0, length=0 if failed else moved,
        received=moved if name.startswith("GET") else 0,
        size=moved if name in ("HEAD", "STAT", "GET") and not failed else None,
        first_byte_ns=_time_ns(fields["first_byte"]) if fields["first_byte"] and name != "PUT" else None,
        status=0 if failed else None,
    )  # fmt: skip


def _time_ns(text: str) -> int:
    """CLOCK_REALTIME of an RFC 3339 time with up to nine digits of a second. Raises: ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    seconds = datetime.fromisoformat(found[1] + ("+00:00" if found[3] == "Z" else found[3])).timestamp()
    return int(seconds) * 1_000_000_000 + int((found[2] or "").ljust(9, "0"))
