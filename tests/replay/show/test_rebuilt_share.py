"""How much of a result rests on counters is said first, and each table that shows rebuilt rows marks them."""

import json

import pytest

from dxt_replay.replay.commands.main import main
from tests.capture_builder import Op, build_capture, read


def captures(tmp_path, *, traced, rebuilt):
    """`traced` and `rebuilt` reads of 1 KiB of one file."""
    ops = [read(0, offset=1024 * i, length=1024, start_ns=i * 1000, end_ns=i * 1000 + 500) for i in range(traced)]
    ops += [
        Op("read", 0, offset=1024 * i, length=1024, start_ns=i * 1000, end_ns=i * 1000 + 500, lane=1,
           origin="reconstructed")
        for i in range(rebuilt)
    ]  # fmt: skip
    ops.sort(key=lambda op: op.start_ns)
    return str(build_capture(tmp_path, name="c", files=["/data/a"], ops=ops).path)


def shown(capsys, *command):
    assert main([*command]) == 0
    return " ".join(capsys.readouterr().out.split())


@pytest.mark.parametrize(("traced", "rebuilt", "pct"), [(3, 1, 25.0), (0, 4, 100.0), (4, 0, 0.0)])
def test_the_share_is_in_the_summary_s_json(tmp_path, capsys, traced, rebuilt, pct):
    capture = captures(tmp_path, traced=traced, rebuilt=rebuilt)
    assert main(["summary", capture, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["reconstructed"]["pct"] == pct


def test_a_part_that_is_rebuilt_is_said_in_the_first_lines(tmp_path, capsys):
    text = shown(capsys, "summary", captures(tmp_path, traced=3, rebuilt=1))
    said = "25 % of the I/O (1 reads and writes, 1.00 KiB) is rebuilt from counters: its times and order are estimates"
    assert said in text.partition(" Job ")[0]
    assert "rebuilt" not in shown(capsys, "summary", captures(tmp_path / "all", traced=4, rebuilt=0))


@pytest.mark.parametrize("table", ["files", "ranks", "rank-files"])
def test_tables_give_rebuilt_bytes_a_column_of_their_own(tmp_path, capsys, table):
    text = shown(capsys, "summary", captures(tmp_path, traced=3, rebuilt=1), "--show", table)
    assert "From counters: rebuilt, not traced. Their times and order are estimates, in no other column." in text
    text = shown(capsys, "summary", captures(tmp_path / "all", traced=4, rebuilt=0), "--show", table)
    assert "counters" not in text


def test_sizes_and_timeline_say_what_is_rebuilt(tmp_path, capsys):
    capture = captures(tmp_path, traced=3, rebuilt=1)
    assert "Sizes: POSIX reads, reconstructed from counters" in shown(capsys, "summary", capture, "--show", "sizes")
    text = shown(capsys, "summary", capture, "--show", "timeline")
    assert "Not in this table: 1 operations rebuilt from counters, whose times are estimates." in text


def test_the_page_says_it_in_its_first_lines(tmp_path, capsys):
    page = tmp_path / "report.html"
    shown(capsys, "report", captures(tmp_path, traced=3, rebuilt=1), "-o", str(page))
    first = page.read_text(encoding="utf-8").partition('id="timeline"')[0]
    assert "25 % of the I/O (1 reads and writes, 1.00 KiB) is rebuilt from counters" in first
