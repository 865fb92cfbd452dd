"""Counters: readers over written logs of every version, and over real ones as pydarshan reads them, bit by bit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dxt_replay.profiler_merge.darshan.counter_layouts import LAYOUTS
from dxt_replay.profiler_merge.darshan.counters import COUNTER_MODULES, SHARED_RANK, read_counters, read_lustre
from dxt_replay.profiler_merge.darshan.dxt import DXT_MODULES, read_dxt
from dxt_replay.profiler_merge.darshan.log import MODULE_NAMES, DarshanLog, open_log
from dxt_replay.traces.errors import LogError
from dxt_replay.traces.files import record_id
from dxt_replay.traces.units import NS_PER_S
from tests.darshan_oracle import answer, log_id, read_all, shared_logs
from tests.darshan_writer import LustreSpec, ModuleSpec, encode_counters, encode_lustre, write_log

PFL = [
    (1 << 20, 1, 0, 16, 0, 1 << 26, 0, b"ssd"),
    (4 << 20, 3, 0, 16, 1 << 26, -1, 0, b""),
    (-1, 0, 0, 0, 0, 0, 0, b""),
]
"""Components of a progressive layout on Lustre, of which the last one is unused."""


def one_module(target: Path, module: str, version: int, *streams: bytes, **options: Any) -> DarshanLog:
    write_log(target, modules={module: ModuleSpec(version=version, streams=streams)}, **options)
    return open_log(target)


def numbered_rows(module: str, version: int, count: int = 3) -> list[dict[str, Any]]:
    """Rows in which every counter has a value of its own, which no double holds."""
    layout, rows = LAYOUTS[module, version], []
    for row in range(count):
        values: dict[str, Any] = {"record_id": 2**64 - 1 - row, "rank": row - 1}
        if layout.has_file_id:
            values["file_id"] = 2**63 + row
        values |= {name: (row << 54) + number for number, name in enumerate(layout.counters)}
        values |= {name: 1000.5 * row + number for number, name in enumerate(layout.fcounters)}
        if layout.stdio_counter:
            values[layout.stdio_counter] = 0
        rows.append(values)
    return rows


def test_records_of_streams_in_posix_version_1_are_left_out_and_counted(tmp_path: Path) -> None:
    rows = numbered_rows("POSIX", 1)
    rows[1]["POSIX_FOPENS"] = 3
    log = one_module(tmp_path / "a", "POSIX", 1, encode_counters("POSIX", rows, 1))
    table = read_counters(log, "POSIX")
    assert table is not None
    assert any("1 POSIX records" in warning and "stdio" in warning for warning in log.warnings)
    assert table.record_ids.tolist() == [rows[0]["record_id"], rows[2]["record_id"]]


def test_absent_modules_and_a_module_without_records(tmp_path: Path) -> None:
    log = open_log(write_log(tmp_path / "a"))
    assert [read_counters(log, module) for module in COUNTER_MODULES] == [None] * len(COUNTER_MODULES)
    assert list(read_lustre(log)) == []
    table = read_counters(one_module(tmp_path / "b", "POSIX", 4, b""), "POSIX")
    assert table is not None
    assert len(table.ranks) == len(table.counters["POSIX_READS"]) == 0


@pytest.mark.parametrize(
    ("module", "version", "known"), [("POSIX", 0, "1, 2, 3, 4"), ("POSIX", 9, "1"), ("LUSTRE", 3, "1, 2")]
)
def test_a_version_that_nobody_knows_is_named(tmp_path: Path, module: str, version: int, known: str) -> None:
    log = one_module(tmp_path / "a", module, version, b"x")
    with pytest.raises(LogError, match=f"{module} version {version}; this release reads {known}"):
        list(read_lustre(log)) if module == "LUSTRE" else read_counters(log, module)


def test_stripes_of_a_progressive_layout(tmp_path: Path) -> None:
    records = [
        LustreSpec(record_id=7, rank=0, components=PFL, ost_ids=[3, 10, 11, 12]),
        LustreSpec(record_id=8, rank=SHARED_RANK, components=PFL[:1], ost_ids=[5]),
        LustreSpec(record_id=9, rank=1),
    ]
    log = one_module(tmp_path / "a", "LUSTRE", 2, encode_lustre(records, 2))
    assert list(read_lustre(log)) == [(7, 0, [(1 << 20, 1), (4 << 20, 3)]), (8, -1, [(1 << 20, 1)]), (9, 1, [])]


@pytest.mark.parametrize(
    "spec",
    [
        LustreSpec(record_id=1, components=[(1, 5, 0, 0, 0, 0, 0, b"")], ost_ids=[1, 2]),
        LustreSpec(record_id=1, components=[(1, -1, 0, 0, 0, 0, 0, b"")], ost_ids=[1, 2]),
        LustreSpec(record_id=1, rank=-7, components=[(1, 1, 0, 0, 0, 0, 0, b"")], ost_ids=[1]),
    ],
)
@pytest.mark.parametrize("lie_at", [None, 16, 24])
def test_damaged_stripes_end_the_records(tmp_path: Path, spec: LustreSpec, lie_at: int | None) -> None:
    data = bytearray(encode_lustre([spec]))
    if lie_at is not None:  # a count that would take all memory
        data[lie_at : lie_at + 8] = (2**60).to_bytes(8, "little")
    log = one_module(tmp_path / "a", "LUSTRE", 2, bytes(data))
    assert not list(read_lustre(log))
    assert "LUSTRE record 0 of" in log.damage["LUSTRE"].problem
    assert log.damage["LUSTRE"].missing == f"{len(data)} bytes"


@pytest.mark.parametrize(
    ("rank", "count", "cut", "kept", "said"),
    [
        (0, 1, 5, [-1, 0], "ends inside record 2 (missing: not known)"),
        (-2, 1, 0, [-1], "POSIX record 1 has the impossible rank -2 (missing: 2 records)"),
        (2**31, 1, 0, [-1], "POSIX record 1 has the impossible rank 2147483648 (missing: 2 records)"),
        # Two of them would add up to more than 64 bits hold.
        (0, 2**56 + 1, 0, [-1], "POSIX record 1 has an impossible POSIX_BYTES_READ for record"),
    ],
)
def test_damage_ends_the_records(tmp_path: Path, rank: int, count: int, cut: int, kept: list[int], said: str) -> None:
    rows = numbered_rows("POSIX", 4)
    rows[1] |= {"rank": rank, "POSIX_BYTES_READ": count}
    data = encode_counters("POSIX", rows, 4)
    log = one_module(tmp_path / "a", "POSIX", 4, data[: len(data) - cut])
    table = read_counters(log, "POSIX")
    assert table is not None
    assert table.ranks.tolist() == kept
    (warning,) = log.warnings
    assert warning.startswith(f"{tmp_path / 'a'} is damaged, and the capture lacks what follows the damage: POSIX")
    assert said in warning


# pydarshan 3.5.0 (darshan_log_get_posix_file) moves too few bytes when it lengthens a record of version 3, so that the
# last two doubles are lost (four of version 2), and skips three doubles by the numbers of integer counters when it
# swaps the bytes of versions 1 to 3. The test checks that these values are wrong in exactly that way.
LOST = {2: ("POSIX_F_FASTEST_RANK_TIME", "POSIX_F_SLOWEST_RANK_TIME"), 3: ()}
LOST_ALWAYS = ("POSIX_F_VARIANCE_RANK_TIME", "POSIX_F_VARIANCE_RANK_BYTES")
NOT_SWAPPED = ("POSIX_F_META_TIME", "POSIX_F_MAX_READ_TIME", "POSIX_F_MAX_WRITE_TIME")
OBFUSCATED = ("imbalanced-io", "nonmpi_dxt_anonymized", "noposixopens", "skew-autobench-ior")
"""Their names are numbers; the ids are those of the original paths."""

Theirs = Mapping[str, np.ndarray]


def check_head(log: DarshanLog, theirs: Theirs) -> None:
    job = log.job
    times = (job.start_ns // NS_PER_S, job.start_ns % NS_PER_S, job.end_ns // NS_PER_S, job.end_ns % NS_PER_S)
    assert [job.uid, *times, job.nprocs, job.jobid] == theirs["job"].tolist()
    assert job.run_time_s == pytest.approx(float(theirs["run_time"]), abs=1e-6)  # it subtracts epochs in doubles
    assert job.exe == str(theirs["exe"])
    assert [f"{key}={value}" for key, value in job.metadata.items()] == theirs["metadata"].tolist()
    assert sorted(f"{mount.fs_type}\t{mount.path}" for mount in job.mounts) == theirs["mounts"].tolist()
    names = zip(theirs["name_ids"].tolist(), theirs["names"].tolist(), strict=True)
    assert {key: name.decode() for key, name in log.names.items()} == dict(names)
    assert sorted(f"{m.name} {m.version} {m.partial}" for m in log.modules.values()) == theirs["modules"].tolist()
    assert set(log.modules) <= set(MODULE_NAMES)
    assert all(m.partial == any(w.startswith(f"{m.name} of ") for w in log.warnings) for m in log.modules.values())


def check_counters(log: DarshanLog, theirs: Theirs) -> int:
    """Returns how many values were compared."""
    compared = 0
    for module in COUNTER_MODULES:
        table = read_counters(log, module)
        assert (table is None) == (f"{module} ids" not in theirs)
        if table is None:
            continue
        assert list(table.counters) == theirs[f"{module} names"].tolist()
        assert list(table.fcounters) == theirs[f"{module} fnames"].tolist()
        assert np.array_equal(table.record_ids, theirs[f"{module} ids"])
        assert np.array_equal(table.ranks, theirs[f"{module} ranks"])
        if not len(table.ranks):
            continue
        version, swapped = log.modules[module].version, log.byte_order == ">"
        if module in ("H5D", "PNETCDF_VAR"):
            # pydarshan asks for the version of H5F before it swaps an id of H5D.
            whole = module != "H5D" or "H5F" in log.modules or version == 1
            ids = theirs[f"{module} file_ids"]
            assert np.array_equal(table.file_ids, ids if whole or not swapped else ids.byteswap())
        # pydarshan adds both kinds of opens before it swaps the sum.
        unswapped = "PNETCDF_FILE_OPENS" if swapped and version < 3 else None
        for (name, values), expected in zip(table.counters.items(), theirs[f"{module} counters"], strict=True):
            assert np.array_equal(values, expected) or name == unswapped, name
        for (name, values), expected in zip(table.fcounters.items(), theirs[f"{module} fcounters"], strict=True):
            compared += len(values)
            if module == "POSIX" and version in LOST and name in (*LOST[version], *LOST_ALWAYS):
                assert not expected.any()
            elif module == "POSIX" and version < 4 and swapped and name in NOT_SWAPPED:
                assert np.array_equal(values.view("i8"), expected.view("i8").byteswap())
            else:
                assert np.array_equal(values.view("i8"), expected.view("i8")), name
    if "LUSTRE" in log.modules:
        found = [(record, rank, *stripe) for record, rank, stripes in read_lustre(log) for stripe in stripes]
        rest = [theirs[f"LUSTRE {name}"].tolist() for name in ("ids", "ranks")]
        assert found == list(zip(*rest, *theirs["LUSTRE counters"].T[:2].tolist(), strict=True))
        compared += len(found)
    return compared


def check_dxt(log: DarshanLog, theirs: Theirs) -> None:
    for module in DXT_MODULES:
        blocks = list(read_dxt(log, module))
        if module not in log.modules:
            assert blocks == []
        elif (module, log.modules[module].version) in (("DXT_POSIX", 2), ("DXT_MPIIO", 3)):
            # pydarshan knows no 40-byte segments and reads none; see the comparison with the counters.
            assert len(theirs[f"{module} ids"]) == 0 < sum(len(block.record) for block in blocks)
        else:
            names = {"record_ids": "ids", "ranks": "ranks", "write_counts": "writes", "read_counts": "reads"}
            columns = (*names, "is_write", "offset", "length", "start_s", "end_s")
            ours = {name: np.concatenate([getattr(block, name) for block in blocks]) for name in columns}
            assert all(np.array_equal(ours[name], theirs[f"{module} {other}"]) for name, other in names.items())
            assert [host for block in blocks for host in block.hostnames] == theirs[f"{module} hosts"].tolist()
            assert np.array_equal(np.column_stack([ours["offset"], ours["length"]]), theirs[f"{module} whole"])
            assert np.array_equal(np.column_stack([ours["start_s"], ours["end_s"]]), theirs[f"{module} times"])
            runs = np.column_stack([ours["write_counts"], ours["read_counts"]]).ravel()
            assert np.array_equal(ours["is_write"], np.repeat(np.tile([True, False], len(runs) // 2), runs))


@pytest.mark.parametrize("path", shared_logs(), ids=log_id)
def test_real_logs(path: Path) -> None:
    log, theirs = open_log(path), answer(path)
    check_head(log, theirs)
    assert (check_counters(log, theirs) > 0) == bool({*COUNTER_MODULES, "LUSTRE"} & set(log.modules))
    check_dxt(log, theirs)
    # Ids of DAOS are not made from a path.
    if path.stem not in OBFUSCATED and "DAOS" not in log.modules:
        assert all(record_id(name) == key for key, name in log.names.items())


def test_written_logs_of_every_version(tmp_path: Path) -> None:
    """With those of which there is no public log here: POSIX 2, H5F 1 and 2, PNETCDF_FILE 1 and 3, PNETCDF_VAR, and
    big-endian HDF5, LUSTRE, PnetCDF, DFS and DAOS."""
    logs = []
    for order in "<>":
        streams = {
            key: [encode_counters(key[0], part, key[1], order) for part in (rows[:2], rows[2:])]
            for key, rows in ((key, numbered_rows(*key)) for key in LAYOUTS)
        }
        for version, components, osts in ((1, PFL[:1], [3]), (2, PFL, [3, 10, 11, 12])):
            spec = LustreSpec(record_id=7, components=components, ost_ids=osts)
            streams["LUSTRE", version] = [encode_lustre([spec], version, order)]
        for (module, version), parts in streams.items():
            logs.append(tmp_path / f"{module}-{version}-{ord(order)}.darshan")
            one_module(logs[-1], module, version, *parts, byte_order=order, names={1: b"/a"})
    for path, theirs in read_all(logs).items():
        assert not isinstance(theirs, str), f"{path.name}: {theirs}"
        assert check_counters(open_log(path), theirs) > 0, path.name
