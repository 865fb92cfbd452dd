"""The counter readers over written logs; tests/profiler_merge/darshan/test_against_pydarshan.py has every version."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.counter_layouts import NEWEST
from dxt_replay.profiler_merge.darshan.counters import COUNTER_MODULES, SHARED_RANK, read_counters, read_lustre
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.traces.errors import LogError
from tests.darshan_writer import LustreSpec, encode_counters, encode_lustre, write_log
from tests.examples import examples
from tests.profiler_merge.darshan.written import PFL, numbered_rows, one_module


@given(
    # Ten counts, of which more than 2**56 is damage, and four values of any kind.
    counts=st.lists(st.integers(-(2**63), 2**56), min_size=10, max_size=10),
    others=st.lists(st.integers(-(2**63), 2**63 - 1), min_size=4, max_size=4),
    rank=st.integers(-1, 2**31 - 1),
)
@settings(max_examples=examples(30))
def test_all_64_bits_survive(counts, others, rank, tmp_path_factory) -> None:
    row = dict(zip(NEWEST["STDIO"].counters, [*counts, *others], strict=True)) | {"record_id": 5, "rank": rank}
    target = tmp_path_factory.mktemp("stdio") / "job.darshan"
    table = read_counters(one_module(target, "STDIO", 2, encode_counters("STDIO", [row], 2)), "STDIO")
    assert table is not None
    assert [int(column[0]) for column in table.counters.values()] == [*counts, *others]
    assert (table.ranks.tolist(), table.file_ids.tolist()) == ([rank], [5])


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
