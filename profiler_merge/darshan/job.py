"""The job record of a Darshan log: who ran what, when, on which file systems.

Layout: `struct darshan_job` in darshan-log-format.h, then the command line, then one "\\n<type>\\t<path>" per mount.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from dataclasses import dataclass, field

from dxt_replay.profiler_merge.darshan.regions import DamagedLogError
from dxt_replay.traces.text import without_secrets
from dxt_replay.traces.units import NS_PER_S, ns_to_seconds

METADATA_BYTES = 1024
_METADATA_OF_5Q = 5 * 8
_MAX_NPROCS = 1 << 31
_MAX_SECONDS = 1 << 34


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """A mounted file system. Both fields are `UNKNOWN` for a path that is not under any mount."""

    path: str
    fs_type: str


UNKNOWN_MOUNT = Mount(path="UNKNOWN", fs_type="UNKNOWN")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogJob:
    """The job. Darshan's time zero lies up to some 60 ms before `start_ns`, and differs per rank.

    start_ns, end_ns: ns since the epoch; `end_ns` is 0 in the log of a killed process.
    has_nsec: False where the times are whole seconds (Darshan before 3.4.1).
    """

    uid: int
    jobid: int
    nprocs: int
    start_ns: int
    end_ns: int
    has_nsec: bool
    exe: str
    metadata: Mapping[str, str] = field(default_factory=dict)
    mounts: tuple[Mount, ...] = ()

    @property
    def run_time_s(self) -> float | None:
        """Seconds from start to end; None if the log lacks it (killed, or the end precedes the start).

        Whole seconds are counted inclusively, as in Darshan's own tools: a job within one second ran 1 s.
        """
        if self.end_ns == 0 or self.end_ns < self.start_ns:
            return None
        elapsed = self.end_ns - self.start_ns
        return ns_to_seconds(elapsed if self.has_nsec else elapsed + NS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRecord:
    """A decoded job record, its mounts with their exact path bytes (longest first), and warnings about it."""

    job: LogJob
    mounts: tuple[tuple[bytes, Mount], ...]
    warnings: tuple[str, ...]


def text(raw: bytes) -> str:
    """`raw` as UTF-8; bytes that are not are shown as `\\xNN`."""
    return raw.decode("utf-8", "backslashreplace")


def decode_job(data: bytes, byte_order: str, *, has_nsec: bool, place: str) -> JobRecord:
    """The job record from its decompressed bytes.

    Pre-releases of Darshan 3.4 wrote the old record into the new container. They are recognised by the place of the
    metadata, with a warning.
    Raises: DamagedLogError when it is too short or no layout gives possible numbers.
    """
    least = struct.calcsize("=" + _numbers(has_nsec)) + METADATA_BYTES
    if len(data) < least:
        raise DamagedLogError(f"the job record of {place} has {len(data)} bytes, too few")
    warnings: list[str] = []
    if has_nsec and data[_METADATA_OF_5Q:].startswith(b"lib_ver="):
        has_nsec = False
        warnings.append(f"{place} has the job record of a pre-release: its times are whole seconds")
    fields = _fields(data, byte_order, has_nsec)
    if not _possible(fields):
        raise DamagedLogError(
            f"the job record of {place} is impossible (nprocs {fields['nprocs']}, start {fields['start_s']} s)"
        )
    start_ns = fields["start_s"] * NS_PER_S + fields["start_ns"]
    end_ns = fields["end_s"] * NS_PER_S + fields["end_ns"]
    if end_ns == 0:
        warnings.append(f"{place} has no end time, as after a process was killed: the run time is unknown")
    elif end_ns < start_ns:
        warnings.append(f"{place} ends before it starts: the clock was set back, the run time is unknown")
    metadata, trailer = _split(data, has_nsec)
    exe, mounts = _exe_and_mounts(trailer)
    job = LogJob(
        uid=fields["uid"],
        jobid=fields["jobid"],
        nprocs=fields["nprocs"],
        start_ns=start_ns,
        end_ns=end_ns,
        has_nsec=has_nsec,
        exe=without_secrets(exe),
        metadata=_metadata(metadata),
        mounts=tuple(mount for _, mount in mounts),
    )
    return JobRecord(job=job, mounts=mounts, warnings=tuple(warnings))


def _fields(data: bytes, byte_order: str, has_nsec: bool) -> dict[str, int]:
    values = struct.unpack_from(byte_order + _numbers(has_nsec), data)
    names: tuple[str, ...] = ("uid", "start_s", "end_s", "nprocs", "jobid")
    if has_nsec:
        names = ("uid", "start_s", "start_ns", "end_s", "end_ns", "nprocs", "jobid")
    return {"start_ns": 0, "end_ns": 0} | dict(zip(names, values, strict=True))


def _numbers(has_nsec: bool) -> str:
    return "7q" if has_nsec else "5q"


def _possible(fields: Mapping[str, int]) -> bool:
    return (
        1 <= fields["nprocs"] <= _MAX_NPROCS
        and all(0 <= fields[name] < _MAX_SECONDS for name in ("start_s", "end_s"))
        and all(0 <= fields[name] < NS_PER_S for name in ("start_ns", "end_ns"))
    )


def _split(data: bytes, has_nsec: bool) -> tuple[bytes, bytes]:
    start = struct.calcsize("=" + _numbers(has_nsec))
    end = start + METADATA_BYTES
    return data[start:end].partition(b"\0")[0], data[end:].partition(b"\0")[0]


def _metadata(raw: bytes) -> dict[str, str]:
    pairs = (line.partition("=") for line in text(raw).split("\n"))
    return {key: value for key, equals, value in pairs if equals}


def _exe_and_mounts(trailer: bytes) -> tuple[str, tuple[tuple[bytes, Mount], ...]]:
    """The command line and the mounts behind it.

    A command line may hold line breaks (`python -c`), and the table may be cut at the record's 4096 bytes, so the
    mounts are the last lines that look like one.
    """
    lines = trailer.split(b"\n")
    if len(lines) > 1 and _mount(lines[-1]) is None and len(lines) > 2 and _mount(lines[-2]) is not None:
        lines.pop()
    first = len(lines)
    while first > 1 and _mount(lines[first - 1]) is not None:
        first -= 1
    found = [mount for mount in map(_mount, lines[first:]) if mount is not None]
    found.sort(key=lambda mount: len(mount[0]), reverse=True)
    return text(b"\n".join(lines[:first])), tuple(found)


def _mount(line: bytes) -> tuple[bytes, Mount] | None:
    fs_type, tab, path = line.partition(b"\t")
    if not tab or not fs_type or not path.startswith(b"/"):
        return None
    return path, Mount(path=text(path), fs_type=text(fs_type))
