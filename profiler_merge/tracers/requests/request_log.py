"""Reads the logs of requests that `record` has the processes of a job write (`request_hooks.log`)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from urllib.parse import unquote

import numpy as np

from dxt_replay.profiler_merge.request_hooks.log import MARK
from dxt_replay.profiler_merge.tracers.requests.request_rows import LoggedRequest, RecordedRequests, RequestRows
from dxt_replay.profiler_merge.tracers.text_lines import Damage, text_lines
from dxt_replay.profiler_merge.tracers.traced_job import TracedProcess
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.units import format_counted

_FIELDS = 16
"""Fields of a request. dxt-replay 0.2.0 had a 17th with the name of a client that showed only its calls."""


def read_request_logs(files: Sequence[Path]) -> RecordedRequests:
    """All requests of a job, whose processes have a file each. Raises: LogError."""
    rows, damage, inferred = RequestRows(), Damage(), 0
    processes: list[TracedProcess] = []
    roots: list[int] = []
    peers: set[str] = set()
    servers: set[str] = set()
    received: dict[tuple[str, str], int] = {}
    for number, path in enumerate(files):
        log = _Log(path, number, damage)
        processes.append(log.process)
        roots.append(log.root)
        peers |= log.peers
        servers |= log.servers
        for ends, count in log.received.items():  # a forked child may close the connection too
            received[ends] = max(received.get(ends, 0), count)
        inferred += log.inferred
        for request in log.requests:
            rows.add(request)
    found = rows.rows()
    warnings = damage.warnings() + rows.warnings()
    if inferred:
        warnings.append(
            f"{format_counted(inferred, 'request')} left out: dxt-replay 0.2.0 inferred them from calls of the client, "
            "and nobody saw them"
        )
    return RecordedRequests(
        kind="requests", files=tuple(files), processes=processes, roots=roots, rows=found, paths=rows.paths,
        sizes=rows.sizes, peers=peers, servers=servers, received=_from_outside(received), warnings=warnings,
    )  # fmt: skip


def _from_outside(received: Mapping[tuple[str, str], int]) -> dict[str, int]:
    """Bytes by peer, of bytes by both ends of a connection; without what processes of the job sent each other."""
    ours = {own for own, _ in received}
    found = Counter[str]()
    for (_, peer), count in received.items():
        if peer not in ours:
            found[peer] += count
    return dict(found)


class _Log:
    """The log of one process."""

    def __init__(self, path: Path, number: int, damage: Damage) -> None:
        self.requests: list[LoggedRequest] = []
        self.peers: set[str] = set()
        self.servers: set[str] = set()
        self.received: dict[tuple[str, str], int] = {}
        self.inferred = 0
        self._wall: list[int] = []
        self._clock: list[int] = []
        self._number = number
        lines = text_lines(path, damage)
        if next(lines, b"") != MARK.encode():
            raise LogError(f"{path} is not a log of requests, or of another release: update dxt-replay")
        try:
            self._begin(next(lines, b"").decode().split("\t"), number)
        except (ValueError, IndexError) as error:
            raise LogError(f"{path} does not say which process wrote it: leave it out") from error
        for line in lines:
            try:
                self._take(line.decode("utf-8", "surrogateescape").split("\t"))
            except (ValueError, IndexError):
                damage.lines += 1
        self._date()

    def _begin(self, fields: Sequence[str], number: int) -> None:
        _, pid, _, rank, host, root = fields
        self.process = TracedProcess(
            number=number, pid=int(pid), trace=number, started_ns=0, rank=int(rank) if rank else None,
            host=unquote(host), executed=True,
        )  # fmt: skip
        self.root = int(root)

    def _take(self, fields: Sequence[str]) -> None:
        if fields[0] == "A":
            wall, clock = map(int, fields[1:])
            self._wall.append(wall)
            self._clock.append(clock)
        elif fields[0] == "C":
            self.peers.add(unquote(fields[2]))
        elif fields[0] == "E":
            self.servers.add(unquote(fields[1]))
        elif fields[0] == "S":
            self.received[unquote(fields[1]), unquote(fields[2])] = int(fields[3])
        elif fields[0] == "R" and any(fields[_FIELDS:]):
            self.inferred += 1
        elif fields[0] == "R":
            self.requests.append(self._request(fields))
        elif fields[0] not in ("P", "#"):
            raise ValueError(fields[0])

    def _request(self, fields: Sequence[str]) -> LoggedRequest:
        (
            _, name, path, offset, length, received, size, start, first, end, status, connection, thread, upload, part,
            source,
        ) = fields[:_FIELDS]  # fmt: skip
        if not 0 <= int(start) <= int(end):
            raise ValueError(fields)
        return LoggedRequest(
            process=self._number, thread=int(thread), name=name, path=f"s3://{unquote(path)}", start_ns=int(start),
            end_ns=int(end), offset=_number(offset), length=_number(length), received=int(received or 0),
            size=_number(size), first_byte_ns=_number(first), status=_number(status), connection=_number(connection),
            upload=_number(upload), part=_number(part), source=unquote(source) or None,
        )  # fmt: skip

    def _date(self) -> None:
        """Put all times on CLOCK_REALTIME, by the instants that the log has on both clocks."""
        if not self._wall:
            raise LogError(f"a log of process {self.process.pid} has no date: leave it out")
        clock, ahead = np.array(self._clock), np.array(self._wall) - np.array(self._clock)
        base = int(ahead[0])
        for request in self.requests:
            shift = base + round(float(np.interp(request.start_ns, clock, ahead - base)))
            request.start_ns += shift
            request.end_ns += shift
            if request.first_byte_ns is not None:
                request.first_byte_ns += shift
        self.process.started_ns = self._wall[0]


def _number(field: str) -> int | None:
    return int(field) if field else None
