"""Writes Darshan logs for tests, in pure Python: any container version, byte order, compression and module version.

Written from `reference/darshan.md` and darshan-util's sources, not from the readers under test; only the counter names
come from the product, and a test compares those with pydarshan's. Logs of the layouts that pydarshan knows have been
read back with it.
"""

from __future__ import annotations

import bz2
import struct
import zlib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dxt_replay.profiler_merge.darshan.counter_layouts import LAYOUTS

MODULE_IDS = {
    "POSIX": 1, "MPI-IO": 2, "H5F": 3, "H5D": 4, "PNETCDF_FILE": 5, "PNETCDF_VAR": 6, "BG/Q": 7, "LUSTRE": 8,
    "STDIO": 9, "DXT_POSIX": 10, "DXT_MPIIO": 11, "MDHIM": 12, "APXC": 13, "APMPI": 14, "HEATMAP": 15, "DFS": 16,
    "DAOS": 17,
}  # fmt: skip

_COMPRESS: Mapping[str, tuple[int, Callable[[bytes], bytes]]] = {
    "zlib": (0, zlib.compress),
    "bzip2": (1, bz2.compress),
    "none": (2, bytes),
}
_ABSENT_MODULES = {"3.00": (4, 6), "3.10": (4, 6), "3.20": (6,), "3.21": (6,), "3.41": ()}
_WITH_PTHREAD = {("DXT_POSIX", 2), ("DXT_MPIIO", 3)}


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSpec:
    """The job record. The nanoseconds are written only where the container has them (3.41)."""

    uid: int = 1000
    jobid: int = 4242
    nprocs: int = 2
    start_s: int = 1_700_000_000
    start_ns: int = 123_456_789
    end_s: int = 1_700_000_060
    end_ns: int = 987_654_321
    exe: bytes = b"python train.py"
    metadata: bytes = b"lib_ver=3.5.0\nh=romio_no_indep_rw=true\n"
    mounts: Sequence[tuple[bytes, bytes]] = ((b"ext4", b"/"), (b"lustre", b"/scratch"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleSpec:
    """A module's region: `streams` are compressed one by one, as each rank does, unless they are `packed` already."""

    version: int
    streams: Iterable[bytes]
    packed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class DxtRecord:
    """One file of one rank. A segment is (offset, length, start_s, end_s) or these and a pthread id.

    Many segments are faster as an array of `segment_dtype`.
    """

    record_id: int
    rank: int = 0
    writes: Sequence[tuple[float, ...]] | np.ndarray = ()
    reads: Sequence[tuple[float, ...]] | np.ndarray = ()
    hostname: bytes = b"node0"


@dataclass(frozen=True, slots=True, kw_only=True)
class LustreSpec:
    """One file's layout: (size, count, pattern, flags, start, end, mirror, pool) per component, and all OST ids."""

    record_id: int
    rank: int = 0
    components: Sequence[tuple[int, int, int, int, int, int, int, bytes]] = ()
    ost_ids: Sequence[int] = field(default_factory=tuple)


def segment_dtype(module: str, version: int, byte_order: str = "<") -> np.dtype:
    """Layout of a DXT segment: 32 bytes, or 40 with `pthread_id`."""
    fields = [("offset", "i8"), ("length", "i8"), ("start_s", "f8"), ("end_s", "f8")]
    if (module, version) in _WITH_PTHREAD:
        fields.append(("pthread_id", "u8"))
    return np.dtype([(name, byte_order + code) for name, code in fields])


def encode_dxt(
    records: Iterable[DxtRecord], module: str = "DXT_POSIX", version: int = 1, byte_order: str = "<"
) -> bytes:
    """The decompressed bytes of DXT records."""
    dtype = segment_dtype(module, version, byte_order)
    parts = []
    for record in records:
        counts = (len(record.writes), len(record.reads))
        parts.append(struct.pack(byte_order + "Qqq64sqq", record.record_id, record.rank, 0, record.hostname, *counts))
        parts += [_segments(record.writes, dtype), _segments(record.reads, dtype)]
    return b"".join(parts)


def encode_counters(module: str, rows: Iterable[Mapping[str, Any]], version: int, byte_order: str = "<") -> bytes:
    """The decompressed bytes of counter records; a row has `record_id`, `rank` (0), `file_id` (0) and counters (0)."""
    layout = LAYOUTS[module, version]
    code = byte_order + "Qq" + "Q" * layout.has_file_id + f"{len(layout.counters)}q{len(layout.fcounters)}d"
    code += f"{layout.tail_bytes}x"
    known = {"record_id", "rank", "file_id", *layout.counters, *layout.fcounters}
    parts = []
    for row in rows:
        if not known.issuperset(row):
            raise KeyError(f"{module} version {version} has no {sorted(set(row) - known)}")
        head = [row["record_id"], row.get("rank", 0)] + [row.get("file_id", 0)] * layout.has_file_id
        values = [row.get(name, 0) for name in (*layout.counters, *layout.fcounters)]
        parts.append(struct.pack(code, *head, *values))
    return b"".join(parts)


def encode_lustre(records: Iterable[LustreSpec], version: int = 2, byte_order: str = "<") -> bytes:
    """The decompressed bytes of LUSTRE records; version 1 keeps the first component's size and count."""
    parts = []
    for record in records:
        if version == 1:
            size, count = record.components[0][:2]
            parts.append(struct.pack(byte_order + "Qq5q", record.record_id, record.rank, 248, 1, 0, size, count))
        else:
            counts = (len(record.components), len(record.ost_ids))
            parts.append(struct.pack(byte_order + "Qqqq", record.record_id, record.rank, *counts))
            parts += [struct.pack(byte_order + "7q16s", *component) for component in record.components]
        parts.append(struct.pack(f"{byte_order}{len(record.ost_ids)}q", *record.ost_ids))
    return b"".join(parts)


def posix_rows(records: Iterable[DxtRecord]) -> list[dict[str, Any]]:
    """POSIX rows that agree with DXT records: one open and close each, counts, bytes and time stamps."""
    rows = []
    for record in records:
        dtype = segment_dtype("DXT_POSIX", 2)
        row: dict[str, Any] = {"record_id": record.record_id, "rank": record.rank, "POSIX_OPENS": 1}
        times = []
        for way, total, segments in (("READ", "BYTES_READ", record.reads), ("WRITE", "BYTES_WRITTEN", record.writes)):
            if not len(segments):
                continue
            columns: np.ndarray = (
                segments if isinstance(segments, np.ndarray) else np.frombuffer(_segments(segments, dtype), dtype)
            )
            times += [columns["start_s"].min(), columns["end_s"].max()]
            row[f"POSIX_{way}S"] = len(columns)
            row[f"POSIX_{total}"] = int(columns["length"].sum())
            row[f"POSIX_F_{way}_TIME"] = float((columns["end_s"] - columns["start_s"]).sum())
            row[f"POSIX_F_{way}_START_TIMESTAMP"] = columns["start_s"].min()
            row[f"POSIX_F_{way}_END_TIMESTAMP"] = columns["end_s"].max()
        if times:
            row["POSIX_F_OPEN_START_TIMESTAMP"] = row["POSIX_F_OPEN_END_TIMESTAMP"] = min(times)
            row["POSIX_F_CLOSE_START_TIMESTAMP"] = row["POSIX_F_CLOSE_END_TIMESTAMP"] = max(times)
        rows.append(row)
    return rows


def write_log(
    path: Path,
    *,
    version: str = "3.41",
    byte_order: str = "<",
    compression: str = "zlib",
    job: JobSpec | None = None,
    names: Mapping[int, bytes] | Sequence[Mapping[int, bytes]] = (),
    modules: Mapping[str, ModuleSpec] | None = None,
    partial: Collection[str] = (),
) -> Path:
    """Write one log and return its path. `names` may be a table per rank; `partial` names modules to flag."""
    code, compress = _COMPRESS[compression]
    wide = version == "3.41"
    slots = 64 if wide else 16
    header_bytes = (32 if wide else 24) + 16 * (1 + slots) + 4 * slots
    name_tables = [names] if isinstance(names, Mapping) else names
    table = [(0, 0)] * (1 + slots)
    versions = [0] * slots
    with path.open("wb") as file:

        def append(entry: int, streams: Iterable[bytes]) -> None:
            begin = file.tell()
            file.writelines(streams)
            table[entry] = (begin, file.tell() - begin)

        file.seek(header_bytes)
        file.write(compress(_job_bytes(job or JobSpec(), wide, byte_order)))
        append(0, (compress(_names_bytes(each, version, byte_order)) for each in name_tables))
        for name, module in sorted((modules or {}).items(), key=lambda item: MODULE_IDS[item[0]]):
            slot = _slot(name, version)
            versions[slot] = module.version
            append(1 + slot, module.streams if module.packed else map(compress, module.streams))
        flag = sum(1 << _slot(name, version) for name in partial)
        file.seek(0)
        file.write(struct.pack(byte_order + "8sqB", version.encode(), 6567223, code))
        file.write(struct.pack(byte_order + ("7xQ" if wide else "3xI"), flag))
        file.write(b"".join(struct.pack(byte_order + "QQ", *entry) for entry in table))
        file.write(struct.pack(f"{byte_order}{slots}I", *versions))
    return path


def write_dxt_log(
    path: Path,
    records: Sequence[DxtRecord],
    *,
    module: str = "DXT_POSIX",
    dxt_version: int = 1,
    byte_order: str = "<",
    extra_modules: Mapping[str, ModuleSpec] | None = None,
    **options: Any,
) -> Path:
    """A log with DXT records, a stream per rank, and POSIX counters (version 4) that agree with them."""
    ranks = sorted({record.rank for record in records})
    by_rank = [[record for record in records if record.rank == rank] for rank in ranks]
    modules = {
        module: ModuleSpec(
            version=dxt_version, streams=[encode_dxt(own, module, dxt_version, byte_order) for own in by_rank]
        ),
        "POSIX": ModuleSpec(
            version=4, streams=[encode_counters("POSIX", posix_rows(own), 4, byte_order) for own in by_rank]
        ),
    }
    return write_log(path, byte_order=byte_order, modules=modules | dict(extra_modules or {}), **options)


def _segments(segments: Sequence[tuple[float, ...]] | np.ndarray, dtype: np.dtype) -> bytes:
    if isinstance(segments, np.ndarray):
        return segments.astype(dtype).tobytes()
    width = len(dtype.names or ())
    return np.array([(*segment, 0)[:width] for segment in segments], dtype=dtype).tobytes()


def _job_bytes(job: JobSpec, wide: bool, byte_order: str) -> bytes:
    times = (job.start_s, job.start_ns, job.end_s, job.end_ns) if wide else (job.start_s, job.end_s)
    numbers = (job.uid, *times, job.nprocs, job.jobid)
    mounts = b"".join(b"\n" + fs_type + b"\t" + path for fs_type, path in job.mounts)
    return struct.pack(f"{byte_order}{len(numbers)}q1024s", *numbers, job.metadata) + job.exe + mounts + b"\0"


def _names_bytes(names: Mapping[int, bytes], version: str, byte_order: str) -> bytes:
    if version == "3.00":
        return b"".join(struct.pack(byte_order + "QI", key, len(name)) + name for key, name in names.items())
    return b"".join(struct.pack(byte_order + "Q", key) + name + b"\0" for key, name in names.items())


def _slot(module: str, version: str) -> int:
    module_id = MODULE_IDS[module]
    absent = _ABSENT_MODULES[version]
    if module_id in absent:
        raise ValueError(f"log version {version} has no {module}")
    return module_id - sum(module_id > other for other in absent)
