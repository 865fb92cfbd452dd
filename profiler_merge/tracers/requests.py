"""Requests to object stores, which a job's clients or their recorders logged, as operations of a capture.

`read_request_logs` reads what `record` has the processes of a job write (`request_hooks.log`), `read_op_logs` the
operation logs of s3dlio and warp-replay (`src/s3_logger.rs` of s3dlio): lines of the columns `_COLUMNS` and others
between tabs, comments behind `#`, often in Zstandard. They have no offset of a GET_RANGE, no HTTP status and no process
id, which stay unknown; a client is a rank.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from dxt_replay.profiler_merge.request_hooks.log import MARK
from dxt_replay.profiler_merge.tracers.traced_job import MOST, Damage, TracedProcess, text_lines
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.schema import LEAST_REFUSED, OPS, READ, WRITE
from dxt_replay.traces.units import format_counted

UNKNOWN = -1
_OP_OF_CALL = {
    "GetObject": "read", "PutObject": "write", "UploadPart": "write", "HeadObject": "stat",
    "GetObjectAttributes": "stat", "CreateMultipartUpload": "open", "CompleteMultipartUpload": "close",
    "ListObjects": "list", "ListObjectsV2": "list", "DeleteObject": "delete", "CopyObject": "rename",
}  # fmt: skip
"""Operation of the S3 API -> op of a capture. A copy is a rename if the same process then deletes its source."""

REQUEST_ROW = np.dtype(
    [("process", np.int32), ("thread", np.int64), ("file", np.int32), ("op", np.int8)]
    + [(name, np.int64) for name in ("offset", "length", "start_ns", "end_ns", "first_byte_ns")]
    + [("status", np.int16), ("connection", np.int32), ("other_file", np.int32), ("received", np.int64)]
)
"""One request. `process`, `file`: numbers of `RecordedRequests`. Times are CLOCK_REALTIME. `connection`: its number in
the process. `received`: all bytes of the answer's body. UNKNOWN where a value is not known."""

_FIELDS = 16
"""Fields of a request. dxt-replay 0.2.0 had a 17th with the name of a client that showed only its calls."""

_COLUMNS = ("thread", "op", "client_id", "bytes", "file", "endpoint", "error", "start", "first_byte", "end")
_CALLS = {
    "GET": "GetObject", "GET_RANGE": "GetObject", "PUT": "PutObject", "HEAD": "HeadObject", "STAT": "HeadObject",
    "LIST": "ListObjectsV2", "DELETE": "DeleteObject",
}  # fmt: skip
_TIME = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)(?:\.(\d{1,9}))?(Z|[+-]\d\d:\d\d)")
_NUMBERS = ("offset", "length", "received", "size", "start_ns", "first_ns", "end_ns", "status", "connection", "thread",
            "upload", "part")  # fmt: skip
_LIMITS = {"status": 1 << 15, "connection": 1 << 31, "thread": 1 << 63}


@dataclass(slots=True)
class _Request:
    """A request as a log states it, in the order of the fields of `request_hooks`; None for what it does not state.
    `name`: of the S3 API. `path`: with `s3://`."""

    process: int
    name: str
    path: str
    offset: int | None
    length: int | None
    received: int
    size: int | None
    start_ns: int
    first_ns: int | None
    end_ns: int
    status: int | None
    connection: int | None
    thread: int
    upload: int | None = None
    part: int | None = None
    source: str | None = None

    def __post_init__(self) -> None:
        for name, value in (item for item in ((each, getattr(self, each)) for each in _NUMBERS) if item[1] is not None):
            if not 0 <= value < _LIMITS.get(name, MOST):
                raise ValueError(name)
        if None in (self.start_ns, self.end_ns, self.thread) or self.start_ns > self.end_ns:
            raise ValueError(self)


@dataclass(slots=True, kw_only=True, eq=False)
class RecordedRequests:
    """All requests of a job.

    files: the logs. kind: of `sources`. processes: by number, with `rank` if the log tells it, and `pid` of the process
    that it began with in `roots`. rows: `REQUEST_ROW`, by start. paths: by number of the file; sizes: the greatest.
    peers: "address:port" of the connections that are known. servers: "host:port" of other requests.
    received: bytes that closed connections to each "address:port" received, whichever client made them.
    """

    kind: str
    files: tuple[Path, ...]
    processes: list[TracedProcess] = field(default_factory=list)
    roots: list[int] = field(default_factory=list)
    rows: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=REQUEST_ROW))
    paths: list[str] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    peers: set[str] = field(default_factory=set)
    servers: set[str] = field(default_factory=set)
    received: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def moved(self) -> int:
        """Bytes of objects that were read and written."""
        return int(self.rows["length"].sum())


def is_refused(rows: np.ndarray) -> np.ndarray:
    """Which reads and writes (`REQUEST_ROW`) the store refused, bool (n,); none that broke off after some bytes."""
    failed = ((rows["status"] == 0) & (rows["length"] == 0)) | (rows["status"] >= LEAST_REFUSED)
    found: np.ndarray = failed & np.isin(rows["op"], (READ, WRITE))
    return found


def read_request_logs(files: Sequence[Path]) -> RecordedRequests:
    """All requests of a job, whose processes have a file each. Raises: LogError."""
    damage, requests, inferred = Damage(), list[_Request](), 0
    received: dict[tuple[str, str], int] = {}
    found = RecordedRequests(kind="requests", files=tuple(files))
    for number, path in enumerate(files):
        lines = text_lines(path, damage)
        if next(lines, b"") != MARK.encode():
            raise LogError(f"{path} is not a log of requests, or of another release: update dxt-replay")
        try:
            _, pid, _, rank, host, root = next(lines, b"").decode().split("\t")
            process = TracedProcess(
                number=number, pid=int(pid), trace=number, started_ns=0, rank=int(rank) if rank else None,
                host=unquote(host), executed=True,
            )  # fmt: skip
            found.roots.append(int(root))
            if not 0 <= process.pid < 1 << 31 or not 0 <= (process.rank or 0) < 1 << 31:
                raise ValueError(pid)
        except ValueError as error:
            raise LogError(f"{path} does not say which process wrote it: leave it out") from error
        found.processes.append(process)
        own, dates = list[_Request](), list[tuple[int, ...]]()
        for line in lines:
            kind, *fields = line.decode("utf-8", "surrogateescape").split("\t")
            try:
                match kind:
                    case "A":
                        wall, clock = map(int, fields)
                        if not 0 <= clock < MOST or not 0 <= wall < MOST:
                            raise ValueError(fields)
                        dates.append((wall, clock))
                    case "C":
                        found.peers.add(unquote(fields[1]))
                    case "E":
                        found.servers.add(unquote(fields[0]))
                    case "S":
                        ends = unquote(fields[0]), unquote(fields[1])  # a forked child may close the connection too
                        received[ends] = max(received.get(ends, 0), int(fields[2]))
                    case "R" if any(fields[_FIELDS - 1 :]):
                        inferred += 1
                    case "R":
                        own.append(_of_fields(number, fields[: _FIELDS - 1]))
                    case _:
                        damage.lines += 1
            except (ValueError, IndexError):
                damage.lines += 1
        if not dates:
            raise LogError(f"a log of process {process.pid} has no date: leave it out")
        _date(own, np.array(dates))
        process.started_ns = dates[0][0]
        requests += own
    ours = {own_end for own_end, _ in received}
    from_outside = Counter[str]()
    for (_, peer), count in received.items():
        if peer not in ours:  # not what processes of the job sent each other
            from_outside[peer] += count
    found.received = dict(from_outside)
    _fill(found, requests, damage)
    if inferred:
        found.warnings.append(
            f"{format_counted(inferred, 'request')} left out: dxt-replay 0.2.0 inferred them from calls of the client, "
            "and nobody saw them"
        )
    return found


def _of_fields(process: int, fields: Sequence[str]) -> _Request:
    name, path, *texts, source = fields
    numbers: list[int | None] = [int(text) if text else None for text in texts]
    if len(numbers) != len(_NUMBERS):
        raise ValueError(fields)
    numbers[2] = numbers[2] or 0  # received
    return _Request(process, name, f"s3://{unquote(path)}", *numbers, unquote(source) or None)  # type: ignore[arg-type, call-arg]


def _date(requests: Sequence[_Request], dates: np.ndarray) -> None:
    """Put times on CLOCK_REALTIME. `dates`: instants on that clock and on the one of the times, int64 (n, 2)."""
    clock, ahead = dates[:, 1], dates[:, 0] - dates[:, 1]
    base = int(ahead[0])
    for request in requests:
        shift = base + round(float(np.interp(request.start_ns, clock, ahead - base)))
        request.start_ns += shift
        request.end_ns += shift
        if request.first_ns is not None:
            request.first_ns += shift


def read_op_logs(files: Sequence[Path]) -> RecordedRequests:
    """All requests to S3 in the logs of a job; other stores are left out. Raises: LogError."""
    damage, requests, others, ranged = Damage(), list[_Request](), Counter[str](), 0
    clients: dict[tuple[int, str], TracedProcess] = {}
    for trace, path in enumerate(files):
        columns: list[str] = []
        for line in text_lines(path, damage):
            fields = line.decode("utf-8", "surrogateescape").split("\t")
            if line.startswith(b"#") or not line:
                continue
            if not columns:
                columns = fields
                if absent := [name for name in _COLUMNS if name not in columns]:
                    raise LogError(f"{path} has no column {absent[0]}: it is not an operation log of s3dlio")
                continue
            try:
                of_line = {name: fields[place] for place, name in enumerate(columns)}
                if not of_line["endpoint"].startswith(("s3:", "http:", "https:")):
                    others[of_line["endpoint"].partition("//")[0]] += 1
                    continue
                request = _of_columns(of_line)
            except (ValueError, IndexError):
                damage.lines += 1
                continue
            started = TracedProcess(number=len(clients), pid=0, trace=trace, started_ns=request.start_ns, executed=True)
            client = clients.setdefault((trace, of_line["client_id"]), started)
            client.started_ns = min(client.started_ns, request.start_ns)
            request.process = client.number
            ranged += of_line["op"] == "GET_RANGE"
            requests.append(request)
    found = RecordedRequests(kind="s3dlio", files=tuple(files), processes=[*clients.values()])
    found.roots = [-number for number in range(len(clients))]
    _fill(found, requests, damage)
    found.warnings += [
        f"{format_counted(count, 'operation')} on {scheme}// left out: only requests to S3 are read"
        for scheme, count in sorted(others.items())
    ]
    if ranged:
        found.warnings.append(
            f"{format_counted(ranged, 'ranged read')} without an offset: the log does not state it, and a replay reads "
            "from the begin of the object"
        )
    return found


def _of_columns(fields: dict[str, str]) -> _Request:
    name, moved, failed = fields["op"], int(fields["bytes"]), bool(fields["error"])
    path = f"s3://{fields['file'].removeprefix('s3://').lstrip('/')}"
    if name == "LIST" and not path.endswith("/"):
        path = path.rpartition("/")[0] + "/"
    return _Request(
        process=-1, name=_CALLS.get(name, name), path=path, offset=None if name == "GET_RANGE" else 0,
        length=0 if failed else moved, received=moved if name.startswith("GET") else 0,
        size=moved if name in ("HEAD", "STAT", "GET") and not failed else None, start_ns=_time_ns(fields["start"]),
        first_ns=_time_ns(fields["first_byte"]) if fields["first_byte"] and name != "PUT" else None,
        end_ns=_time_ns(fields["end"]), status=0 if failed else None, connection=None,
        thread=int(fields["thread"]) & (1 << 63) - 1,
    )  # fmt: skip


def _time_ns(text: str) -> int:
    """CLOCK_REALTIME of an RFC 3339 time with up to nine digits of a second. Raises: ValueError."""
    found = _TIME.fullmatch(text)
    if found is None:
        raise ValueError(text)
    seconds = datetime.fromisoformat(found[1] + ("+00:00" if found[3] == "Z" else found[3])).timestamp()
    return int(seconds) * 1_000_000_000 + int((found[2] or "").ljust(9, "0"))


def _fill(found: RecordedRequests, requests: list[_Request], damage: Damage) -> None:
    """The rows, paths, sizes and warnings of these requests."""
    left_out = Counter(each.name for each in requests if each.name not in _OP_OF_CALL)
    del left_out["DeleteObjects"]  # a deletion of each object follows it
    requests = [each for each in requests if each.name in _OP_OF_CALL]
    requests.sort(key=lambda each: (each.start_ns, -each.end_ns))
    _place_parts(requests)
    rows, numbers = [], dict[str, int]()
    renames = _renames(requests)
    deletions = {id(deletion) for deletion in renames.values()}
    for each in requests:
        if id(each) in deletions:
            continue
        op, path, end_ns, other = OPS.index(_OP_OF_CALL[each.name]), each.path, each.end_ns, UNKNOWN
        if each.name == "CopyObject":
            if id(each) not in renames:
                left_out[each.name] += 1
                continue
            path, end_ns = f"s3://{each.source}", renames[id(each)].end_ns
            other = numbers.setdefault(each.path, len(numbers))
        file = numbers.setdefault(path, len(numbers))
        moves, status = op in (READ, WRITE), _known(each.status)
        length = (each.length or 0) if moves and status < LEAST_REFUSED else 0
        offset = _known(each.offset) if moves else UNKNOWN
        found.sizes[file] = max(found.sizes.get(file, 0), each.size or 0, offset + length if length else 0)
        first_ns = UNKNOWN if each.first_ns is None else each.first_ns - each.start_ns
        rows.append(
            (each.process, each.thread, file, op, offset, length, each.start_ns, end_ns, first_ns,
             status, _known(each.connection), other, each.received)
        )  # fmt: skip
    found.rows, found.paths = np.array(rows, dtype=REQUEST_ROW), list(numbers)
    found.warnings += damage.warnings()
    found.warnings += [
        f"{format_counted(count, f'{name} request')} left out: a capture has no such operation"
        for name, count in sorted(left_out.items())
    ]


def _place_parts(requests: Sequence[_Request]) -> None:
    """Give each part of a multipart upload its offset, UNKNOWN after a part that no log has."""
    uploads: dict[tuple[str, int], list[_Request]] = {}
    for each in requests:
        if each.name == "UploadPart" and each.upload is not None and each.part is not None:
            uploads.setdefault((each.path, each.upload), []).append(each)
    for parts in uploads.values():
        lengths: dict[int, int] = {}
        for each in parts:  # a part that was refused, and sent again, has the length of the one that came through
            lengths[each.part or 0] = max(lengths.get(each.part or 0, 0), each.length or 0)
        offset, offsets = 0, {}
        for expected, part in enumerate(sorted(lengths), start=1):
            offset = offset if part == expected else UNKNOWN
            offsets[part] = offset
            offset = offset + lengths[part] if offset >= 0 else UNKNOWN
        for each in parts:
            each.offset = offsets[each.part or 0]


def _renames(requests: Sequence[_Request]) -> dict[int, _Request]:
    """id of a copy -> the deletion of its source, which the same process requests next."""
    copies: dict[tuple[int, str], _Request] = {}
    found = {}
    for each in requests:
        done = each.status is None or 200 <= each.status < 300
        if each.name == "CopyObject" and each.source and done:
            copies[each.process, f"s3://{each.source}"] = each
        elif each.name == "DeleteObject" and done:
            copy = copies.pop((each.process, each.path), None)
            if copy is not None and copy.end_ns <= each.start_ns + 1:
                found[id(copy)] = each
    return found


def _known(value: int | None) -> int:
    return UNKNOWN if value is None else value
