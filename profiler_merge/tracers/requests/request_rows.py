"""Requests as rows, whoever logged them: what each API call is in a capture. Pure.

A row of a log names the API's call. Parts of a multipart upload get their offsets from the lengths of the parts before
them, and a copy whose source is deleted by the same process becomes a rename.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from dxt_replay.profiler_merge.tracers.traced_job import TracedProcess
from dxt_replay.traces.schema import LEAST_REFUSED, OPS, READ, WRITE
from dxt_replay.traces.units import format_counted

OP_OF_CALL = {
    "GetObject": READ, "PutObject": WRITE, "UploadPart": WRITE,
    **{name: OPS.index("stat") for name in ("HeadObject", "GetObjectAttributes")},
    "CreateMultipartUpload": OPS.index("open"), "CompleteMultipartUpload": OPS.index("close"),
    **{name: OPS.index("list") for name in ("ListObjects", "ListObjectsV2")},
    "DeleteObject": OPS.index("delete"),
}  # fmt: skip
"""Operation of the S3 API -> op of a capture."""
COPY, RENAME = "CopyObject", OPS.index("rename")
UNKNOWN = -1

REQUEST_ROW = np.dtype(
    [
        ("process", np.int32),
        ("thread", np.int64),
        ("file", np.int32),
        ("op", np.int8),
        ("offset", np.int64),
        ("length", np.int64),
        ("start_ns", np.int64),
        ("end_ns", np.int64),
        ("first_byte_ns", np.int64),
        ("status", np.int16),
        ("connection", np.int32),
        ("other_file", np.int32),
        ("received", np.int64),
    ]
)
"""One request. `process`, `file`: numbers of `RecordedRequests`. Times are CLOCK_REALTIME. `connection`: its number in
the process. `received`: all bytes of the answer's body. UNKNOWN where a value is not known."""


@dataclass(slots=True)
class LoggedRequest:
    """A request as a log states it; None for what it does not state. `name`: of the S3 API. `path`: with `s3://`."""

    process: int
    thread: int
    name: str
    path: str
    start_ns: int
    end_ns: int
    offset: int | None = None
    length: int | None = None
    received: int = 0
    size: int | None = None
    first_byte_ns: int | None = None
    status: int | None = None
    connection: int | None = None
    upload: int | None = None
    part: int | None = None
    source: str | None = None


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
    processes: list[TracedProcess]
    roots: list[int]
    rows: np.ndarray
    paths: list[str]
    sizes: dict[int, int]
    peers: set[str] = field(default_factory=set)
    servers: set[str] = field(default_factory=set)
    received: dict[str, int] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)

    @property
    def moved(self) -> int:
        """Bytes of objects that were read and written."""
        return int(self.rows["length"].sum())


class RequestRows:
    """Collects requests and makes rows of them."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self._found: list[LoggedRequest] = []
        self.sizes: dict[int, int] = {}
        self._left_out: Counter[str] = Counter()

    def add(self, request: LoggedRequest) -> None:
        """Add a request; those that a capture cannot have are counted."""
        if request.name in OP_OF_CALL or request.name == COPY:
            self._found.append(request)
        elif request.name != "DeleteObjects":  # a deletion of each object follows it
            self._left_out[request.name] += 1

    @property
    def paths(self) -> list[str]:
        """The path of each file, by number."""
        return list(self._numbers)

    def rows(self) -> np.ndarray:
        """All requests, `REQUEST_ROW` (n,), by start, the longest first where several start."""
        self._found.sort(key=lambda each: (each.start_ns, -each.end_ns))
        offsets = _part_offsets(self._found)
        deleted = self._renames()
        rows = []
        for request in self._found:
            if id(request) in deleted.values():
                continue
            op, end_ns, other = OP_OF_CALL.get(request.name, RENAME), request.end_ns, UNKNOWN
            path = request.path
            if request.name == COPY:
                pair = deleted.get(id(request))
                if pair is None:
                    self._left_out[COPY] += 1
                    continue
                path, other = f"s3://{request.source}", self._number(path)
                end_ns = next(each.end_ns for each in self._found if id(each) == pair)
            file = self._number(path)
            moves = op in (READ, WRITE)
            status = _known(request.status)
            length = (request.length or 0) if moves and status < LEAST_REFUSED else 0
            offset = offsets.get(id(request), _known(request.offset)) if moves else UNKNOWN
            self._note_size(file, max(request.size or 0, offset + length if moves and length else 0))
            first_ns = UNKNOWN if request.first_byte_ns is None else request.first_byte_ns - request.start_ns
            rows.append(
                (request.process, request.thread, file, op, offset, length, request.start_ns, end_ns, first_ns,
                 status, _known(request.connection), other, request.received)
            )  # fmt: skip
        return np.array(rows, dtype=REQUEST_ROW)

    def warnings(self) -> list[str]:
        """What was left out."""
        return [
            f"{format_counted(count, f'{name} request')} left out: a capture has no such operation"
            for name, count in sorted(self._left_out.items())
        ]

    def _number(self, path: str) -> int:
        return self._numbers.setdefault(path, len(self._numbers))

    def _note_size(self, file: int, size: int) -> None:
        self.sizes[file] = max(self.sizes.get(file, 0), size)

    def _renames(self) -> dict[int, int]:
        """id of a copy -> id of the deletion of its source, which the same process requests next."""
        copies: dict[tuple[int, str], LoggedRequest] = {}
        found = {}
        for request in self._found:
            done = request.status is None or 200 <= request.status < 300
            if request.name == COPY and request.source and done:
                copies[request.process, f"s3://{request.source}"] = request
            elif request.name == "DeleteObject" and done:
                copy = copies.pop((request.process, request.path), None)
                if copy is not None and copy.end_ns <= request.start_ns + 1:
                    found[id(copy)] = id(request)
        return found


def is_refused(rows: np.ndarray) -> np.ndarray:
    """Which reads and writes (`REQUEST_ROW`) the store refused, bool (n,); none that broke off after some bytes."""
    failed = ((rows["status"] == 0) & (rows["length"] == 0)) | (rows["status"] >= LEAST_REFUSED)
    found: np.ndarray = failed & np.isin(rows["op"], (READ, WRITE))
    return found


def _known(value: int | None) -> int:
    return UNKNOWN if value is None else value


def _part_offsets(requests: Sequence[LoggedRequest]) -> dict[int, int]:
    """id of each part of a multipart upload -> its offset, UNKNOWN after a part that no log has."""
    uploads: dict[tuple[str, int], list[LoggedRequest]] = {}
    for request in requests:
        if request.name == "UploadPart" and request.upload is not None and request.part is not None:
            uploads.setdefault((request.path, request.upload), []).append(request)
    found = {}
    for parts in uploads.values():
        lengths: dict[int, int] = {}
        for each in parts:  # a part that was refused, and sent again, has the length of the one that came through
            lengths[each.part or 0] = max(lengths.get(each.part or 0, 0), each.length or 0)
        offset, offsets = 0, {}
        for expected, part in enumerate(sorted(lengths), start=1):
            offset = offset if part == expected else UNKNOWN
            offsets[part] = offset
            offset = offset + lengths[part] if offset >= 0 else UNKNOWN
        found.update({id(each): offsets[each.part or 0] for each in parts})
    return found
