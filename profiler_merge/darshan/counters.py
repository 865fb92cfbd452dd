"""Decodes counter modules of a Darshan log into columns by Darshan's own names, and stripes from LUSTRE records.

All module versions up to Darshan 3.5 are decoded from the log's bytes.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np

from dxt_replay.profiler_merge.darshan.counter_layouts import LAYOUTS, NEWEST, Layout
from dxt_replay.profiler_merge.darshan.log import DamagedLogError, DarshanLog
from dxt_replay.traces.errors import LogError

COUNTER_MODULES = tuple(NEWEST)
SHARED_RANK = -1
"""The rank of a record that Darshan reduced over all ranks, because all opened the file."""

_MAX_RANK = (1 << 31) - 1
_COUNT = re.compile(
    r"_(OPENS|READX?S|WRITEX?S|FETCHES|UPDATES|GETS|PUTS|STATS|SEEKS|SYNCS|FSYNCS|FDSYNCS|FLUSHES"
    r"|BYTES_(READ|WRITTEN)|MAX_BYTE_\w+)$"
)
"""Counters that are added up over files and ranks."""

_KEPT_BYTES = 1 << 26
"""Most bytes of a module's counters that stay in memory with the log: those of some 100,000 records."""

_MOST_COUNTED = 1 << 56
"""Largest count, 64 PiB: the sum of 128 such records still fits 64 bits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterTable:
    """One module's records, n rows. A file has a row per rank, or a single row of SHARED_RANK.

    ranks: int64.
    record_ids: uint64. file_ids: the same, but of an H5D dataset (0 where unknown) and a PNETCDF_VAR variable the file.
    counters, fcounters: int64 and float64 by name, such as "POSIX_READS" and "POSIX_F_READ_TIME": all counters of the
        newest version. One that the log's version lacks is -1, except that POSIX_RENAMED_FROM is 0 (it is a record id:
        view it as uint64). Timestamps are seconds from the rank's own zero, 0 where nothing happened.
    """

    module: str
    ranks: np.ndarray
    record_ids: np.ndarray
    file_ids: np.ndarray
    counters: Mapping[str, np.ndarray]
    fcounters: Mapping[str, np.ndarray]

    def without(self, files: Collection[int]) -> CounterTable:
        """The records of all but these files."""
        kept = ~np.isin(self.file_ids, np.fromiter(files, dtype=np.uint64, count=len(files)))
        if kept.all():
            return self
        return replace(
            self,
            ranks=self.ranks[kept],
            record_ids=self.record_ids[kept],
            file_ids=self.file_ids[kept],
            counters={name: values[kept] for name, values in self.counters.items()},
            fcounters={name: values[kept] for name, values in self.fcounters.items()},
        )


LustreRecord = tuple[int, int, list[tuple[int, int]]]
"""Record id and rank of a file on Lustre, and bytes per stripe and number of stripes of each component of its layout:
more than one for a progressive or mirrored layout; -1 bytes where they are unknown."""


def read_counters(log: DarshanLog, module: str, without: Collection[int] = ()) -> CounterTable | None:
    """All records of one of COUNTER_MODULES, but of the files `without`; None when the log does not have the module.

    Raises: LogError for a version that this release does not know. Those of a damaged module end before the first
    damaged record, which `log.damage` then names. A log keeps decoded records, unless there are too many.
    """
    if module not in log.modules:
        return None
    if module not in log.counters:
        version = log.modules[module].version
        if (module, version) not in LAYOUTS:
            known = ", ".join(str(number) for name, number in LAYOUTS if name == module)
            raise LogError(f"{log.path} has {module} version {version}; this release reads {known}: update dxt-replay")
        table = _decode_table(log, module, LAYOUTS[module, version])
        if sum(values.nbytes for values in (*table.counters.values(), *table.fcounters.values())) > _KEPT_BYTES:
            return table.without(without)
        log.counters[module] = table
    kept: CounterTable = log.counters[module]
    return kept.without(without)


def read_lustre(log: DarshanLog) -> Iterator[LustreRecord]:
    """Iterate over the LUSTRE records in file order: a job may open millions of files. Empty without the module.

    Ends before the first damaged record, which `log.damage` then names. Raises: LogError for an unknown version.
    """
    if "LUSTRE" not in log.modules:
        return
    version = log.modules["LUSTRE"].version
    if version not in (1, 2):
        raise LogError(f"{log.path} has LUSTRE version {version}; this release reads 1, 2: update dxt-replay")
    data, _ = _module_bytes(log, "LUSTRE")
    position = number = 0
    while position < len(data):
        try:
            record, position = _lustre_record(data, position, log.byte_order, version)
        except (struct.error, ValueError) as error:
            why = "it is cut off" if isinstance(error, struct.error) else str(error)
            problem = f"LUSTRE record {number} of {log.path} is damaged ({why})"
            log.damage["LUSTRE"] = DamagedLogError(problem, f"{len(data) - position:,} bytes")
            return
        number += 1
        yield record


def _decode_table(log: DarshanLog, module: str, layout: Layout) -> CounterTable:
    records = _fixed_records(log, module, layout)
    found = len(records)
    if layout.stdio_counter is not None:
        records = records[records["counters"][:, layout.counters.index(layout.stdio_counter)] <= 0]
        if found > len(records):
            log.add_warning(
                f"{found - len(records)} {module} records of {log.path} are left out: they also count stdio calls"
            )
    newest, record_ids = NEWEST[module], records["id"].astype(np.uint64)
    file_ids = record_ids if not newest.has_file_id else np.zeros(len(records), np.uint64)
    return CounterTable(
        module=module,
        ranks=records["rank"].astype(np.int64),
        record_ids=record_ids,
        file_ids=records["file_id"].astype(np.uint64) if layout.has_file_id else file_ids,
        counters=_columns(records["counters"], layout, layout.counters, newest.counters, np.int64),
        fcounters=_columns(records["fcounters"], layout, layout.fcounters, newest.fcounters, np.float64),
    )


def _fixed_records(log: DarshanLog, module: str, layout: Layout) -> np.ndarray:
    fields: list[tuple[str, str] | tuple[str, str, tuple[int]]] = [("id", "u8"), ("rank", "i8")]
    fields += [("file_id", "u8")] * layout.has_file_id
    fields += [("counters", "i8", (len(layout.counters),)), ("fcounters", "f8", (len(layout.fcounters),))]
    fields += [("tail", f"V{layout.tail_bytes}")] * (layout.tail_bytes > 0)
    dtype = np.dtype(fields).newbyteorder(log.byte_order)
    data, ended = _module_bytes(log, module)
    whole = len(data) // dtype.itemsize
    if ended and len(data) % dtype.itemsize:
        log.damage[module] = DamagedLogError(f"{module} of {log.path} ends inside record {whole}")
    records = np.frombuffer(data, dtype, whole)
    ranks = records["rank"]
    # The sums of impossible counts would not fit 64 bits.
    columns = [place for place, name in enumerate(layout.counters) if _COUNT.search(name)]
    counts = records["counters"][:, columns]
    sound = (ranks >= SHARED_RANK) & (ranks <= _MAX_RANK) & (counts <= _MOST_COUNTED).all(axis=1)
    if sound.all():
        return records
    first = int(sound.argmin())
    problem = f"has the impossible rank {ranks[first]}"
    if SHARED_RANK <= ranks[first] <= _MAX_RANK:
        place = int((counts[first] > _MOST_COUNTED).argmax())
        name = log.describe(int(records["id"][first]))
        problem = f"has an impossible {layout.counters[columns[place]]} for {name} ({counts[first, place]})"
    missing = f"{'' if ended else 'at least '}{whole - first:,} record{'s' * (whole - first != 1)}"
    log.damage[module] = DamagedLogError(f"{module} record {first} of {log.path} {problem}", missing)
    return records[:first]


def _columns(
    block: np.ndarray, layout: Layout, have: tuple[str, ...], want: tuple[str, ...], dtype: type
) -> dict[str, np.ndarray]:
    rows = dict(zip(have, np.ascontiguousarray(block.T, dtype=dtype), strict=True))
    for name, parts in layout.sums.items():
        if name in want:
            rows[name] = np.sum([rows[part] for part in parts], axis=0)
    return {name: rows[name] if name in rows else np.full(len(block), layout.missing[name], dtype) for name in want}


def _lustre_record(data: bytes, position: int, byte_order: str, version: int) -> tuple[LustreRecord, int]:
    """A record, and the position behind it. Raises: struct.error or ValueError for a damaged one."""
    found: list[tuple[int, int]] = []
    if version == 1:  # id, rank, OSTs and MDTs of the file system, stripe offset, size and count, then the OST ids
        record_id, rank, _, _, _, size, stripes = struct.unpack_from(byte_order + "Qq5q", data, position)
        position += 56
        found.append((size, stripes))
    else:  # of Darshan 3.4.5: id, rank, number of components and of stripes, the components, all OST ids
        record_id, rank, components, stripes = struct.unpack_from(byte_order + "Qqqq", data, position)
        position += 32
        # Size and count, then five numbers and a name, which are not needed.
        layout = struct.Struct(byte_order + "2q40x16x")
        for _ in range(components):
            found.append(layout.unpack_from(data, position))
            position += layout.size
        # The runtime allocated more components than the file has.
        found = found[: next((place for place, (size, _) in enumerate(found) if size == -1), None)]
        # Without components there are no OST ids, whatever the count (darshan_log_get_lustre_record).
        stripes = stripes if components > 0 else 0
    end = position + 8 * stripes
    if stripes < 0 or end > len(data):
        raise ValueError(f"it should hold {stripes} numbers, {max(0, len(data) - position) // 8} are there")
    counts = [count for _, count in found]
    if min(counts, default=0) < 0 or sum(counts) > stripes:
        raise ValueError(f"its components have {counts} stripes, {stripes} are there")
    if not SHARED_RANK <= rank <= _MAX_RANK:
        raise ValueError(f"its rank is {rank}")
    return (record_id, rank, found), end


def _module_bytes(log: DarshanLog, module: str) -> tuple[bytes, bool]:
    """The bytes of a module up to damage, and whether there is none."""
    data, damage = log.content(log.chunks(module))
    if damage is not None:
        log.damage[module] = damage
    return data, damage is None
