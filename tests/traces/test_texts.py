"""Foreign text, quantities as text, text in CSV files, recorded paths, and packed files."""

from __future__ import annotations

import gzip
import io
import os
import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.traces.csv_text import as_plain_text
from dxt_replay.traces.files import exact_paths, is_recorder_file, probably_mapped
from dxt_replay.traces.gzip_blocks import FREE_BYTES, ExpansionError, unpacked_blocks
from dxt_replay.traces.text import escaped, listed, printable, program_of
from dxt_replay.traces.units import (
    format_bytes,
    format_count,
    format_duration,
    format_rate_change,
    format_signed,
    format_slowdown,
    seconds_to_ns,
)
from tests.capture_builder import File, files_table

SHOWN: dict[Callable[..., str], list[tuple[object, str]]] = {
    printable: [
        ("/a b/é", "/a b/é"), ("a\nb", "a\\nb"), ("\x1b[2J", "\\x1b[2J"), ("\u202egpj", "\\u202egpj"),
        (b"/\xff", "/\\udcff"), (Path("/x\t"), "/x\\t"),
    ],
    escaped: [("\x00", "\\x00")],
    listed: [([], ""), (["a"], "a"), (["a", "b", "c"], "a, b, c"), (list("abcde"), "a, b, c and 2 more")],
    program_of: [
        ("python train.py --epochs 3", "train.py"), ("python3 -u -W ignore train.py", "train.py"), ("", ""),
        ("python -X dev train.py", "train.py"), ("/usr/bin/python3.11 -m package.train x", "package.train"),
        ("./solver input", "./solver"), ("python", "python"),
    ],
    format_bytes: [
        (0, "0 B"), (1023, "1023 B"), (161.7, "162 B"), (1024, "1.00 KiB"), (1536, "1.50 KiB"), (262144, "256 KiB"),
        (1 << 40, "1.00 TiB"), (1024**2 - 1, "1.00 MiB"),
    ],
    format_duration: [
        (0, "0 ns"), (999, "999 ns"), (1500, "1.50 us"), (25_000, "25.0 us"), (999_600, "1.00 ms"),
        (1_234_000_000, "1.234 s"),
    ],
    format_count: [(1234567, "1,234,567")],
    partial(format_rate_change, same_pct=0.5): [
        (1.0, "about the same"), (1.41, "41 % higher"), (0.6, "40 % lower"), (6.4, "6.4 times as high"),
    ],
    format_slowdown: [(1 / 155.4, "155 times faster"), (1.2, "20 % slower"), (3.0, "3.0 times slower"), (None, "-")],
    partial(format_signed, digits=1): [(-0.04, "0.0"), (0.04, "0.0"), (-0.06, "-0.1"), (1.25, "+1.2")],
}  # fmt: skip


@pytest.mark.parametrize(("show", "given", "text"), [(show, *case) for show, cases in SHOWN.items() for case in cases])
def test_texts_for_people(show: Callable[..., str], given: object, text: str) -> None:
    assert show(given) == text
    assert printable(text) == text, "nothing that a terminal would obey"


@given(st.integers(0, 4_000_000), st.integers(0, 999_999_999))
def test_seconds_become_the_nearest_nanosecond(whole: int, fraction: int) -> None:
    seconds = whole + fraction / 1e9
    assert abs(seconds_to_ns(seconds) - (whole * 10**9 + fraction)) <= 1
    assert seconds_to_ns(np.array([seconds])).tolist() == [seconds_to_ns(seconds)]


def plain(text: str | None) -> str | None:
    shown: str | None = as_plain_text(pa.array([text], pa.string()))[0].as_py()
    return shown


@pytest.mark.parametrize(
    "text", ["=cmd|x!A0", "+cmd", "-cmd", "@SUM(A1)", "\t=1", "\r=1", "'=1", "-", "1-2"[1:] + "+A1"]
)
def test_a_formula_becomes_text(text: str) -> None:
    assert plain(text) == f"'{text}"


@pytest.mark.parametrize("text", ["/data/=a", "", "a=b", "'quoted'", "-1", "+0.5e-3", "-12.", "12", None])
def test_names_and_numbers_stay(text: str | None) -> None:
    assert plain(text) == text


@given(st.lists(st.text(alphabet="=+-@\t\r'a/1.") | st.none()))
def test_the_values_can_be_read_back(texts: list[str | None]) -> None:
    shown = as_plain_text(pa.array(texts, pa.string())).to_pylist()
    back = [None if text is None else re.sub(r"\A'(?='*[=+@\t\r-])", "", text) for text in shown]
    assert back == texts


def test_the_exact_bytes_of_a_path() -> None:
    files = pa.table({"path": ["/a", "/\\xff", "/é"], "path_bytes": pa.array([None, b"/\xff", None], pa.binary())})
    assert exact_paths(files) == [b"/a", b"/\xff", "/é".encode()]
    assert exact_paths(files.slice(1, 1)) == [b"/\xff"]


@pytest.mark.parametrize(
    ("counters", "mapped"),
    [
        ({"posix_opens": 2, "posix_seeks": 3, "posix_reads": 0}, True),
        ({"posix_opens": 2, "posix_seeks": 3, "posix_reads": 1}, False),
        ({"posix_opens": 2, "posix_seeks": 0, "posix_reads": 0}, False),
        ({"posix_opens": 1, "posix_seeks": 1, "posix_writes": 4}, False),
        ({"posix_opens": 1, "posix_seeks": 1, "mpiio_reads": 4}, False),
        ({"stdio_opens": 1, "stdio_seeks": 1}, False),
        ({}, False),
    ],
)
def test_a_file_that_is_positioned_and_never_read_was_probably_mapped(counters: dict[str, int], mapped: bool) -> None:
    table = files_table([File("/data", counters=counters), File("<STDIN>", counters=counters)], [])
    assert probably_mapped(table).tolist() == [mapped, False]


@pytest.mark.parametrize(
    ("path", "recorder"),
    [
        ("/run/dxt-anchor.vm.18352.bin", True),
        ("/logs/plugins/profile/2026_11_20/vm.xplane.pb", True),
        ("/logs/plugins/profile/2026_11_20/vm.trace.json.gz", True),
        ("/logs/events.out.tfevents.1.vm.profile-empty", True),
        ("/prof/vm_17815.1795309101260993922.pt.trace.json.gz", True),
        ("/logs/u_python_id1-1_1-1-1-1_1.darshan_partial", True),
        ("/data/train.tfrecord", False),
        ("/data/anchor.bin", False),
        ("/data/annotations.json", False),
        ("/run/model.ckpt-1.data-00000-of-00001", False),
    ],
)
def test_who_wrote_a_file(path, recorder):
    assert is_recorder_file(path) is recorder


@given(st.lists(st.binary(max_size=3000), min_size=1, max_size=4), st.integers(1, 4000), st.integers(1, 4000))
def test_the_blocks_are_the_contents_plain_or_packed(parts: list[bytes], block: int, packed: int) -> None:
    data = b"".join(parts)
    members = b"".join(map(gzip.compress, parts))
    for stored in (b"{" + data, members, members + bytes(20)):
        blocks = list(unpacked_blocks(io.BytesIO(stored), block, packed))
        assert b"".join(blocks) == (stored if stored[:1] == b"{" else data)
        assert all(0 < len(each) <= block for each in blocks)


@pytest.mark.parametrize("change", ["cut off", "damaged"])
def test_what_is_readable_comes_before_the_error(change: str) -> None:
    data = os.urandom(1 << 16)
    stored = bytearray(gzip.compress(data))
    if change == "cut off":
        del stored[-1000:]
    else:
        stored[-6] ^= 1  # of the checksum
    blocks = []
    with pytest.raises(EOFError, match=change):
        blocks.extend(unpacked_blocks(io.BytesIO(stored), 4096))
    found = b"".join(blocks)
    assert data.startswith(found)
    assert len(found) > (1 << 16) - 8192


def test_a_bomb_stops_before_it_fills_the_memory() -> None:
    sizes: list[int] = []
    bomb = io.BytesIO(gzip.compress(bytes(FREE_BYTES * 2)))
    with pytest.raises(ExpansionError, match="more than 200 times its size"):
        sizes.extend(map(len, unpacked_blocks(bomb, 1 << 20)))
    assert sum(sizes) <= FREE_BYTES
