"""The counter readers: over written logs of every version, and against pydarshan on those and on every real one."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.counter_layouts import LAYOUTS, NEWEST
from dxt_replay.profiler_merge.darshan.counters import (
    COUNTER_MODULES,
    SHARED_RANK,
    read_counters,
    read_lustre,
)
from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from dxt_replay.traces.errors import LogError, UsageError
from tests.darshan_oracle import answer, log_id, read_all, shared_logs
from tests.darshan_writer import (
    LustreSpec,
    ModuleSpec,
    encode_counters,
    encode_lustre,
    write_log,
)
from tests.examples import examples

# pydarshan 3.5.0 (darshan_log_get_posix_file) moves too few bytes when it lengthens a record of version 3, so that the
# last two doubles are lost (four of version 2), and skips three doubles by the numbers of integer counters when it
# swaps the bytes of versions 1 to 3. The test checks that these values are wrong in exactly that way.
LOST = {
    2: ("POSIX_F_FASTEST_RANK_TIME", "POSIX_F_SLOWEST_RANK_TIME"),
    3: (),
}
LOST_ALWAYS = ("POSIX_F_VARIANCE_RANK_TIME", "POSIX_F_VARIANCE_RANK_BYTES")
NOT_SWAPPED = ("POSIX_F_META_TIME", "POSIX_F_MAX_READ_TIME", "POSIX_F_MAX_WRITE_TIME")

PFL = [
    (1 << 20, 1, 0, 16, 0, 1 << 26, 0, b"ssd"),
    (4 << 20, 3, 0, 16, 1 << 26, -1, 0, b""),
    (-1, 0, 0, 0, 0, 0, 0, b""),
]


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "job.darshan"


def one_module(target: Path, module: str, version: int, *streams: bytes, **options: Any) -> DarshanLog:
    write_log(target, modules={module: ModuleSpec(version=version, streams=streams)}, **options)
    return open_log(target)


def numbered_rows(module: str, version: int, count: int = 3) -> list[dict[str, Any]]:
    """Rows in which every counter has a value of its own."""
    layout = LAYOUTS[module, version]
    rows = []
    for row in range(count):
        values: dict[str, Any] = {"record_id": 2**64 - 1 - row, "rank": row - 1}
        if layout.has_file_id:
            values["file_id"] = 2**63 + row
        values |= {name: 1000 * row + number for number, name in enumerate(layout.counters)}
        values |= {name: 1000.5 * row + number for number, name in enumerate(layout.fcounters)}
        if layout.stdio_counter:
            values[layout.stdio_counter] = 0
        rows.append(values)
    return rows


class TestEveryVersion:
    @pytest.mark.parametrize("byte_order", ["<", ">"])
    @pytest.mark.parametrize(("module", "version"), LAYOUTS)
    def test_gives_what_was_written(self, target: Path, module: str, version: int, byte_order: str) -> None:
        rows = numbered_rows(module, version)
        streams = [encode_counters(module, part, version, byte_order) for part in (rows[:1], rows[1:])]
        table = read_counters(one_module(target, module, version, *streams, byte_order=byte_order), module)
        assert table is not None
        layout = LAYOUTS[module, version]
        assert tuple(table.counters) == NEWEST[module].counters
        assert tuple(table.fcounters) == NEWEST[module].fcounters
        assert table.ranks.tolist() == [row["rank"] for row in rows]
        assert table.record_ids.tolist() == [row["record_id"] for row in rows]
        assert (table.ranks.dtype, table.record_ids.dtype) == (np.dtype("i8"), np.dtype("u8"))
        for kind, dtype in ((table.counters, "i8"), (table.fcounters, "f8")):
            for name, values in kind.items():
                assert values.dtype == np.dtype(dtype)
                parts = layout.sums.get(name, (name,))
                assert values.tolist() == [
                    sum(row.get(part, layout.missing.get(part)) for part in parts) for row in rows
                ]
        if module in ("H5D", "PNETCDF_VAR"):
            assert table.file_ids is not None
            assert table.file_ids.tolist() == [row.get("file_id", 0) for row in rows]
        else:
            assert table.file_ids is None

    @given(
        # Ten counts, of which more than 2**56 is damage, and four values of any kind.
        values=st.tuples(
            st.lists(st.integers(-(2**63), 2**56), min_size=10, max_size=10),
            st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4),
        ).map(lambda parts: [*parts[0], *parts[1]]),
        rank=st.integers(-1, 2**31 - 1),
    )
    @settings(max_examples=examples(30))
    def test_all_64_bits_survive(self, values: list[int], rank: int, tmp_path_factory: pytest.TempPathFactory) -> None:
        row = dict(zip(NEWEST["STDIO"].counters, values, strict=True)) | {"record_id": 5, "rank": rank}
        target = tmp_path_factory.mktemp("stdio") / "job.darshan"
        table = read_counters(one_module(target, "STDIO", 2, encode_counters("STDIO", [row], 2)), "STDIO")
        assert table is not None
        assert [int(column[0]) for column in table.counters.values()] == values
        assert table.ranks.tolist() == [rank]

    def test_records_of_streams_in_posix_version_1_are_left_out_and_counted(self, target: Path) -> None:
        rows = numbered_rows("POSIX", 1)
        rows[1]["POSIX_FOPENS"] = 3
        log = one_module(target, "POSIX", 1, encode_counters("POSIX", rows, 1))
        table = read_counters(log, "POSIX")
        assert table is not None
        assert any("1 POSIX records" in warning and "stdio" in warning for warning in log.warnings)
        assert table.record_ids.tolist() == [rows[0]["record_id"], rows[2]["record_id"]]

    def test_absent_modules(self, target: Path) -> None:
        log = open_log(write_log(target))
        assert [read_counters(log, module) for module in COUNTER_MODULES] == [None] * len(COUNTER_MODULES)
        assert list(read_lustre(log)) == []

    def test_a_module_without_records(self, target: Path) -> None:
        table = read_counters(one_module(target, "POSIX", 4, b""), "POSIX")
        assert table is not None
        assert len(table.ranks) == len(table.counters["POSIX_READS"]) == 0

    def test_other_modules_are_a_wrong_use(self, target: Path) -> None:
        with pytest.raises(UsageError, match="'DXT_POSIX' is not a counter module"):
            read_counters(open_log(write_log(target)), "DXT_POSIX")


class TestLustre:
    @pytest.mark.parametrize("byte_order", ["<", ">"])
    def test_a_progressive_layout(self, target: Path, byte_order: str) -> None:
        records = [
            LustreSpec(record_id=7, rank=0, components=PFL, ost_ids=[3, 10, 11, 12]),
            LustreSpec(record_id=8, rank=SHARED_RANK, components=PFL[:1], ost_ids=[5]),
            LustreSpec(record_id=9, rank=1),
        ]
        log = one_module(target, "LUSTRE", 2, encode_lustre(records, 2, byte_order), byte_order=byte_order)
        assert list(read_lustre(log)) == [
            (7, 0, [(1 << 20, 1), (4 << 20, 3)]),
            (8, -1, [(1 << 20, 1)]),
            (9, 1, []),
        ]

    def test_absent(self, target: Path) -> None:
        assert list(read_lustre(open_log(write_log(target)))) == []

    def test_an_unknown_version(self, target: Path) -> None:
        with pytest.raises(LogError, match="LUSTRE version 3; this release reads 1, 2"):
            list(read_lustre(one_module(target, "LUSTRE", 3, b"x")))

    @pytest.mark.parametrize("byte_order", ["<", ">"])
    def test_version_1(self, target: Path, byte_order: str) -> None:
        records = [
            LustreSpec(record_id=n, components=[(1 << 20, 2, 0, 0, 0, 0, 0, b"")], ost_ids=[n, n + 1]) for n in (4, 9)
        ]
        log = one_module(target, "LUSTRE", 1, encode_lustre(records, 1, byte_order), byte_order=byte_order)
        assert list(read_lustre(log)) == [(record, 0, [(1 << 20, 2)]) for record in (4, 9)]

    @pytest.mark.parametrize(
        "spec",
        [
            LustreSpec(record_id=1, components=[(1, 5, 0, 0, 0, 0, 0, b"")], ost_ids=[1, 2]),
            LustreSpec(record_id=1, components=[(1, -1, 0, 0, 0, 0, 0, b"")], ost_ids=[1, 2]),
            LustreSpec(record_id=1, rank=-7, components=[(1, 1, 0, 0, 0, 0, 0, b"")], ost_ids=[1]),
        ],
    )
    def test_damage(self, target: Path, spec: LustreSpec) -> None:
        log = one_module(target, "LUSTRE", 2, encode_lustre([spec]))
        assert not list(read_lustre(log))
        assert "LUSTRE record 0 of" in log.damage["LUSTRE"].problem

    @pytest.mark.parametrize("at", [16, 24])
    def test_a_lying_count(self, target: Path, at: int) -> None:
        data = bytearray(encode_lustre([LustreSpec(record_id=1, components=PFL, ost_ids=[1, 2, 3, 4])]))
        data[at : at + 8] = (2**60).to_bytes(8, "little")
        log = one_module(target, "LUSTRE", 2, bytes(data))
        assert not list(read_lustre(log))
        assert (log.damage["LUSTRE"].missing, len(log.warnings)) == (f"{len(data)} bytes", 1)


class TestDamage:
    def test_a_cut_record(self, target: Path) -> None:
        data = encode_counters("POSIX", numbered_rows("POSIX", 4), 4)[:-5]
        log = one_module(target, "POSIX", 4, data)
        table = read_counters(log, "POSIX")
        assert table is not None
        assert len(table.ranks) == 2
        (warning,) = log.warnings
        assert warning.startswith(f"{target} is damaged, and the capture lacks what follows the damage: POSIX ends")
        assert "ends inside record 2 (missing: not known)" in warning

    @pytest.mark.parametrize("rank", [-2, 2**31])
    def test_an_impossible_rank(self, target: Path, rank: int) -> None:
        rows = numbered_rows("POSIX", 4)
        rows[1]["rank"] = rank
        data = encode_counters("POSIX", rows, 4)
        log = one_module(target, "POSIX", 4, data)
        table = read_counters(log, "POSIX")
        assert table is not None
        assert table.ranks.tolist() == [-1]
        assert f"POSIX record 1 has the impossible rank {rank} (missing: 2 records)" in log.warnings[0]


@pytest.mark.parametrize("version", [0, 9])
def test_a_version_that_nobody_knows_is_named(target: Path, version: int) -> None:
    log = one_module(target, "POSIX", version, b"x")
    with pytest.raises(LogError, match=f"has POSIX version {version}; this release reads 1, 2, 3, 4: update"):
        read_counters(log, "POSIX")


def assert_agree(path: Path, theirs: Mapping[str, np.ndarray]) -> int:
    """Our columns and pydarshan's, bit by bit; returns how many values were compared."""
    log = open_log(path)
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
        if table.file_ids is not None:
            # pydarshan asks for the version of H5F before it swaps an id of H5D.
            whole = module != "H5D" or "H5F" in log.modules or log.modules["H5D"].version == 1
            swapped = log.byte_order == "<" or whole
            file_ids = theirs[f"{module} file_ids"]
            assert np.array_equal(table.file_ids, file_ids if swapped else file_ids.byteswap())
        # pydarshan adds both kinds of opens before it swaps the sum.
        unswapped = "PNETCDF_FILE_OPENS" if log.byte_order == ">" and log.modules[module].version < 3 else None
        for name, values, expected in zip(
            table.counters, table.counters.values(), theirs[f"{module} counters"], strict=True
        ):
            assert np.array_equal(values, expected) or name == unswapped, name
        for name, values, expected in zip(
            table.fcounters, table.fcounters.values(), theirs[f"{module} fcounters"], strict=True
        ):
            version = log.modules[module].version
            compared += len(values) * 2
            if module == "POSIX" and version in LOST and name in (*LOST[version], *LOST_ALWAYS):
                assert not expected.any()
            elif module == "POSIX" and version < 4 and log.byte_order == ">" and name in NOT_SWAPPED:
                assert np.array_equal(values.view("i8"), expected.view("i8").byteswap())
            else:
                assert np.array_equal(values.view("i8"), expected.view("i8")), name
    return compared + assert_records_agree(log, theirs)


def assert_records_agree(log: DarshanLog, theirs: Mapping[str, np.ndarray]) -> int:
    compared = 0
    if "LUSTRE" in log.modules:
        found = [(record, rank, stripe) for record, rank, stripes in read_lustre(log) for stripe in stripes]
        assert [record for record, _, _ in found] == theirs["LUSTRE ids"].tolist()
        assert [rank for _, rank, _ in found] == theirs["LUSTRE ranks"].tolist()
        stripes = [list(stripe) for _, _, stripe in found]
        assert stripes == theirs["LUSTRE counters"][:, :2].tolist()
        compared += len(found)
    return compared


@pytest.mark.parametrize("path", shared_logs(), ids=log_id)
def test_real_logs_agree_with_pydarshan(path: Path) -> None:
    compared = assert_agree(path, answer(path))
    readable = {*COUNTER_MODULES, "LUSTRE"} & set(open_log(path).modules)
    assert (compared > 0) == bool(readable)


def test_written_logs_of_every_version_agree_with_pydarshan(tmp_path: Path) -> None:
    """With those of which there is no public log here: POSIX 2, H5F 1 and 2, PNETCDF_FILE 1 and 3, PNETCDF_VAR, and
    big-endian HDF5, LUSTRE, PnetCDF, DFS and DAOS."""
    logs = []
    for byte_order in "<>":
        for module, version in LAYOUTS:
            rows = numbered_rows(module, version)
            path = tmp_path / f"{module}-{version}-{ord(byte_order)}.darshan"
            streams = [encode_counters(module, part, version, byte_order) for part in (rows[:2], rows[2:])]
            one_module(path, module, version, *streams, byte_order=byte_order, names={1: b"/a"})
            logs.append(path)
        for version in (1, 2):
            components = PFL[:1] if version == 1 else PFL
            osts = [3] if version == 1 else [3, 10, 11, 12]
            data = encode_lustre([LustreSpec(record_id=7, components=components, ost_ids=osts)], version, byte_order)
            path = tmp_path / f"LUSTRE-{version}-{ord(byte_order)}.darshan"
            one_module(path, "LUSTRE", version, data, byte_order=byte_order, names={1: b"/a"})
            logs.append(path)
    for path, theirs in read_all(logs).items():
        assert not isinstance(theirs, str), f"{path.name}: {theirs}"
        assert assert_agree(path, theirs) > 0, path.name
