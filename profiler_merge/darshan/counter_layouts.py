"""The counters in a record of each module version, in file order.

Sources: darshan-{posix,mpiio,stdio,hdf5,pnetcdf,dfs,daos}-log-format.h for the newest versions, the conversions of the
old ones in the `_get_` functions of darshan-*-logutils.c. All integers and floats of a record have 64 bits.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

_SIZES = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
_TOP = (1, 2, 3, 4)
_DIMENSIONS = (1, 2, 3, 4, 5)

_RANKS = ("FASTEST_RANK", "FASTEST_RANK_BYTES", "SLOWEST_RANK", "SLOWEST_RANK_BYTES")
_TIMESTAMPS = (
    "F_OPEN_START_TIMESTAMP", "F_READ_START_TIMESTAMP", "F_WRITE_START_TIMESTAMP", "F_CLOSE_START_TIMESTAMP",
    "F_OPEN_END_TIMESTAMP", "F_READ_END_TIMESTAMP", "F_WRITE_END_TIMESTAMP", "F_CLOSE_END_TIMESTAMP",
)  # fmt: skip
_RANK_TIMES = ("F_FASTEST_RANK_TIME", "F_SLOWEST_RANK_TIME", "F_VARIANCE_RANK_TIME", "F_VARIANCE_RANK_BYTES")
_TIMES = ("F_READ_TIME", "F_WRITE_TIME", "F_META_TIME", "F_MAX_READ_TIME", "F_MAX_WRITE_TIME", *_RANK_TIMES)

_POSIX = (
    "OPENS", "FILENOS", "DUPS", "READS", "WRITES", "SEEKS", "STATS", "MMAPS", "FSYNCS", "FDSYNCS",
    "RENAME_SOURCES", "RENAME_TARGETS", "RENAMED_FROM", "MODE", "BYTES_READ", "BYTES_WRITTEN",
    "MAX_BYTE_READ", "MAX_BYTE_WRITTEN", "CONSEC_READS", "CONSEC_WRITES", "SEQ_READS", "SEQ_WRITES", "RW_SWITCHES",
    "MEM_NOT_ALIGNED", "MEM_ALIGNMENT", "FILE_NOT_ALIGNED", "FILE_ALIGNMENT",
    "MAX_READ_TIME_SIZE", "MAX_WRITE_TIME_SIZE",
    *(f"SIZE_{way}_{size}" for way in ("READ", "WRITE") for size in _SIZES),
    *(f"STRIDE{i}_{what}" for what in ("STRIDE", "COUNT") for i in _TOP),
    *(f"ACCESS{i}_{what}" for what in ("ACCESS", "COUNT") for i in _TOP),
    *_RANKS,
)  # fmt: skip
_MPIIO = (
    "INDEP_OPENS", "COLL_OPENS", "INDEP_READS", "INDEP_WRITES", "COLL_READS", "COLL_WRITES",
    "SPLIT_READS", "SPLIT_WRITES", "NB_READS", "NB_WRITES", "SYNCS", "HINTS", "VIEWS", "MODE",
    "BYTES_READ", "BYTES_WRITTEN", "RW_SWITCHES", "MAX_READ_TIME_SIZE", "MAX_WRITE_TIME_SIZE",
    *(f"SIZE_{way}_AGG_{size}" for way in ("READ", "WRITE") for size in _SIZES),
    *(f"ACCESS{i}_{what}" for what in ("ACCESS", "COUNT") for i in _TOP),
    *_RANKS,
)  # fmt: skip
_STDIO = (
    "OPENS", "FDOPENS", "READS", "WRITES", "SEEKS", "FLUSHES", "BYTES_WRITTEN", "BYTES_READ",
    "MAX_BYTE_READ", "MAX_BYTE_WRITTEN", *_RANKS,
)  # fmt: skip
_STDIO_F = (
    "F_META_TIME", "F_WRITE_TIME", "F_READ_TIME",
    *(f"F_{what}_{end}_TIMESTAMP" for end in ("START", "END") for what in ("OPEN", "CLOSE", "WRITE", "READ")),
    *_RANK_TIMES,
)  # fmt: skip
_H5F_F = (
    "F_OPEN_START_TIMESTAMP", "F_CLOSE_START_TIMESTAMP", "F_OPEN_END_TIMESTAMP", "F_CLOSE_END_TIMESTAMP", "F_META_TIME",
)  # fmt: skip
_H5D = (
    "OPENS", "READS", "WRITES", "FLUSHES", "BYTES_READ", "BYTES_WRITTEN", "RW_SWITCHES",
    "REGULAR_HYPERSLAB_SELECTS", "IRREGULAR_HYPERSLAB_SELECTS", "POINT_SELECTS",
    "MAX_READ_TIME_SIZE", "MAX_WRITE_TIME_SIZE",
    *(f"SIZE_{way}_AGG_{size}" for way in ("READ", "WRITE") for size in _SIZES),
    *(
        f"ACCESS{i}_{what}"
        for i in _TOP
        for what in ("ACCESS", *(f"{shape}_D{d}" for shape in ("LENGTH", "STRIDE") for d in _DIMENSIONS))
    ),
    *(f"ACCESS{i}_COUNT" for i in _TOP),
    "DATASPACE_NDIMS", "DATASPACE_NPOINTS", "DATATYPE_SIZE", *(f"CHUNK_SIZE_D{d}" for d in _DIMENSIONS),
    "USE_MPIIO_COLLECTIVE", "USE_DEPRECATED", *_RANKS,
)  # fmt: skip
_PNETCDF_FILE = (
    "CREATES", "OPENS", "REDEFS", "INDEP_WAITS", "COLL_WAITS", "SYNCS", "BYTES_READ", "BYTES_WRITTEN", "WAIT_FAILURES",
)  # fmt: skip
_PNETCDF_FILE_F = (
    *(f"F_{what}_{end}_TIMESTAMP" for end in ("START", "END") for what in ("OPEN", "CLOSE", "WAIT")),
    "F_META_TIME", "F_WAIT_TIME",
)  # fmt: skip
_PNETCDF_VAR = (
    "OPENS", "INDEP_READS", "INDEP_WRITES", "COLL_READS", "COLL_WRITES", "NB_READS", "NB_WRITES",
    "BYTES_READ", "BYTES_WRITTEN", "RW_SWITCHES",
    *(f"{way}_VAR{kind}" for way in ("PUT", "GET") for kind in ("", "1", "A", "S", "M", "N", "D")),
    *(f"{way}_VAR{kind}" for way in ("IPUT", "IGET", "BPUT") for kind in ("", "1", "A", "S", "M", "N")),
    "MAX_READ_TIME_SIZE", "MAX_WRITE_TIME_SIZE",
    *_H5D[_H5D.index("SIZE_READ_AGG_0_100") : _H5D.index("DATASPACE_NDIMS")],
    "NDIMS", "NPOINTS", "DATATYPE_SIZE", "IS_RECORD_VAR", *_RANKS,
)  # fmt: skip
_MOVED = (
    "BYTES_READ", "BYTES_WRITTEN", "RW_SWITCHES", "MAX_READ_TIME_SIZE", "MAX_WRITE_TIME_SIZE",
    *(f"SIZE_{way}_{size}" for way in ("READ", "WRITE") for size in _SIZES),
    *(f"ACCESS{i}_{what}" for what in ("ACCESS", "COUNT") for i in _TOP),
)  # fmt: skip
_DFS = (
    "OPENS", "GLOBAL_OPENS", "LOOKUPS", "DUPS", "READS", "READXS", "WRITES", "WRITEXS", "NB_READS", "NB_WRITES",
    "GET_SIZES", "PUNCHES", "REMOVES", "STATS", *_MOVED, "CHUNK_SIZE", *_RANKS,
)  # fmt: skip
_DAOS = (
    *(f"OBJ_{what}" for what in ("OPENS", "FETCHES", "UPDATES", "PUNCHES")),
    *(f"OBJ_{what}" for what in ("DKEY_PUNCHES", "AKEY_PUNCHES", "DKEY_LISTS", "AKEY_LISTS", "RECX_LISTS")),
    *(f"ARRAY_{what}" for what in ("OPENS", "READS", "WRITES", "GET_SIZES", "SET_SIZES", "STATS")),
    *("ARRAY_PUNCHES", "ARRAY_DESTROYS"),
    *(f"KV_{what}" for what in ("OPENS", "GETS", "PUTS", "REMOVES", "LISTS", "DESTROYS")),
    "NB_OPS", *_MOVED, "OBJ_OTYPE", "ARRAY_CELL_SIZE", "ARRAY_CHUNK_SIZE", *_RANKS,
)  # fmt: skip
_DAOS_F = (*_TIMESTAMPS, *(name for name in _TIMES if "VARIANCE" not in name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A record: u64 id, i64 rank, (u64 id of the file), the integers `counters`, the doubles `fcounters`, the tail.

    counters, fcounters: names in file order.
    has_file_id: whether the id of the file follows the rank.
    missing: counters that only newer versions have -> their substitute value.
    stdio_counter: a counter that is positive if the record describes a stream instead of a file (POSIX version 1).
    sums: counters of newer versions -> the counters of this version whose sum they are.
    tail_bytes: length of what follows the doubles (ids of pool, container and object).
    """

    counters: tuple[str, ...]
    fcounters: tuple[str, ...]
    has_file_id: bool = False
    missing: Mapping[str, int] = field(default_factory=dict)
    stdio_counter: str | None = None
    sums: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    tail_bytes: int = 0


def _prefixed(prefix: str, names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(f"{prefix}_{name}" for name in names)


def _without(newer: Layout, missing: Mapping[str, int]) -> Layout:
    return Layout(
        counters=tuple(name for name in newer.counters if name not in missing),
        fcounters=tuple(name for name in newer.fcounters if name not in missing),
        has_file_id=newer.has_file_id,
        missing={**newer.missing, **missing},
    )


def _layouts() -> dict[tuple[str, int], Layout]:
    posix4 = Layout(counters=_prefixed("POSIX", _POSIX), fcounters=_prefixed("POSIX", (*_TIMESTAMPS, *_TIMES)))
    # A record id is unsigned, so for a file that was not renamed Darshan uses 0 instead of -1.
    renames = {"POSIX_RENAME_SOURCES": -1, "POSIX_RENAME_TARGETS": -1, "POSIX_RENAMED_FROM": 0}
    posix3 = _without(posix4, {"POSIX_FILENOS": -1, "POSIX_DUPS": -1, **renames})
    posix2 = _without(posix3, {"POSIX_F_CLOSE_START_TIMESTAMP": -1, "POSIX_F_OPEN_END_TIMESTAMP": -1})
    streams = _prefixed("POSIX", ("FOPENS", "FREADS", "FWRITES", "FSEEKS"))
    posix1 = Layout(
        counters=(*posix2.counters[:6], *streams, *posix2.counters[6:]),
        fcounters=posix2.fcounters,
        missing=posix2.missing,
        stdio_counter="POSIX_FOPENS",
    )
    mpiio3 = Layout(counters=_prefixed("MPIIO", _MPIIO), fcounters=_prefixed("MPIIO", (*_TIMESTAMPS, *_TIMES)))
    mpiio2 = _without(mpiio3, {"MPIIO_F_CLOSE_START_TIMESTAMP": -1, "MPIIO_F_OPEN_END_TIMESTAMP": -1})
    stdio2 = Layout(counters=_prefixed("STDIO", _STDIO), fcounters=_prefixed("STDIO", _STDIO_F))
    h5f3 = Layout(counters=_prefixed("H5F", ("OPENS", "FLUSHES", "USE_MPIIO")), fcounters=_prefixed("H5F", _H5F_F))
    h5f2 = _without(h5f3, {"H5F_FLUSHES": -1, "H5F_USE_MPIIO": -1, "H5F_F_META_TIME": -1})
    h5d2 = Layout(
        counters=_prefixed("H5D", _H5D), fcounters=_prefixed("H5D", (*_TIMESTAMPS, *_TIMES)), has_file_id=True
    )
    file3 = Layout(
        counters=_prefixed("PNETCDF_FILE", _PNETCDF_FILE), fcounters=_prefixed("PNETCDF_FILE", _PNETCDF_FILE_F)
    )
    opens = _prefixed("PNETCDF_FILE", ("INDEP_OPENS", "COLL_OPENS"))
    file2 = Layout(
        counters=opens,
        fcounters=tuple(name for name in file3.fcounters if "_WAIT_" not in name and "_META_" not in name),
        missing=dict.fromkeys((*file3.counters, *file3.fcounters), -1),
        sums={"PNETCDF_FILE_OPENS": opens},
    )
    file1 = replace(file2, fcounters=(file2.fcounters[0], file2.fcounters[-1]))
    return {
        ("POSIX", 1): posix1,
        ("POSIX", 2): posix2,
        ("POSIX", 3): posix3,
        ("POSIX", 4): posix4,
        # Version 2 only corrected MPIIO_F_WRITE_START_TIMESTAMP.
        ("MPI-IO", 1): mpiio2,
        ("MPI-IO", 2): mpiio2,
        ("MPI-IO", 3): mpiio3,
        ("STDIO", 1): _without(stdio2, {"STDIO_FDOPENS": -1}),
        ("STDIO", 2): stdio2,
        ("H5F", 1): _without(h5f2, {"H5F_F_CLOSE_START_TIMESTAMP": -1, "H5F_F_OPEN_END_TIMESTAMP": -1}),
        ("H5F", 2): h5f2,
        ("H5F", 3): h5f3,
        ("H5D", 1): Layout(counters=h5d2.counters, fcounters=h5d2.fcounters),
        ("H5D", 2): h5d2,
        ("PNETCDF_FILE", 1): file1,
        ("PNETCDF_FILE", 2): file2,
        ("PNETCDF_FILE", 3): file3,
        ("PNETCDF_VAR", 1): Layout(
            counters=_prefixed("PNETCDF_VAR", _PNETCDF_VAR),
            fcounters=_prefixed("PNETCDF_VAR", (*_TIMESTAMPS, *_TIMES)),
            has_file_id=True,
        ),
        ("DFS", 1): Layout(counters=_prefixed("DFS", _DFS), fcounters=_prefixed("DFS", _DAOS_F), tail_bytes=32),
        ("DAOS", 1): Layout(counters=_prefixed("DAOS", _DAOS), fcounters=_prefixed("DAOS", _DAOS_F), tail_bytes=48),
    }


LAYOUTS: Mapping[tuple[str, int], Layout] = _layouts()
"""Layout by module and version: all versions up to Darshan 3.5."""

NEWEST: Mapping[str, Layout] = {module: LAYOUTS[module, version] for module, version in sorted(LAYOUTS)}
"""Layout of the newest version by module; because of the sorting, the highest version overwrites the others."""
