"""The pages as text: what is on them, what they must not hold, how large they are. `test_browser.py` opens them."""

import gzip
import hashlib
import html
import json
import re
from importlib.resources import files

import pytest
from plotly.graph_objects import Figure

from benchmarks.large_job import mixed_capture
from dxt_replay.profiler_merge.analysis.bars import MOST_BARS as BARS
from dxt_replay.profiler_merge.analysis.overview import overview
from dxt_replay.replay.compare.comparison import compare
from dxt_replay.replay.show.page.chart_data import align, lag_course, timeline
from dxt_replay.replay.show.page.page import TABLE_ROWS, report_page
from dxt_replay.traces.part import Part
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.units import MIB
from tests.capture_builder import Span, build_capture, lanes_table, read
from tests.replay.show.page.pages import MS, Elements, carried, page_of, training

SECTIONS = ["answer", "timeline", "findings", "steps", "sizes", "files", "unseen", "numbers"]


def totals_of(line, kinds):
    """(operations, bytes) of the bars of some kinds in what `timeline` returned."""
    tracks = [track for track in line["tracks"] if track["kind"] in kinds]
    operations = sum(sum(track["operations"]) if "operations" in track else len(track["start"]) for track in tracks)
    return operations, sum(sum(track.get("bytes", ())) for track in tracks)


def parts_of(page):
    """Share in per cent of each part of the bar of the answer, by name."""
    bar = page[page.index('<div class="bar"') : page.index('<ul class="key">')]
    return {name: float(width) for width, name in re.findall(r'width:([\d.]+)%" title="([^":]*):', bar)}


def ids_of(elements):
    assert elements.open == []
    return [section["id"] for section in elements.of("section")]


def test_it_is_whole_small_and_fetches_nothing(drawn):
    page = drawn[1]
    assert len(page.encode()) < 1_100_000
    elements = Elements(page)
    assert ids_of(elements) == SECTIONS
    assert {link["href"] for link in elements.of("a")} == {f"#{name}" for name in SECTIONS}
    ids = [attributes["id"] for _, attributes in elements.tags if "id" in attributes]
    names = [element["aria-label"] for element in elements.of("div") if element.get("role") == "img"]
    assert all(len(each) == len(set(each)) for each in (ids, names)), "an id or a name stands twice"
    assert not [attributes for _, attributes in elements.tags if "src" in attributes]
    assert [link["href"] for link in elements.of("link")] == ["data:,"]
    policy = next(str(meta["content"]) for meta in elements.of("meta") if "http-equiv" in meta)
    (script,) = (script for script in elements.of("script") if script.get("type") is None)
    assert policy.startswith(f"default-src 'none'; script-src 'nonce-{script['nonce']}';")


def test_the_title_is_the_answer_and_the_bar_has_its_numbers(drawn):
    found, page = drawn
    title = html.unescape(page.partition("<h1>")[2].partition("</h1>")[0])
    assert title.startswith("Infinitely fast storage would save at most ")
    assert html.unescape(page.partition("<title>")[2]).startswith(title)
    number = page.partition('<p class="number"><strong>')[2].partition("</strong>")[0]
    assert number.removeprefix("at most ") in title
    ranks, parts = found.analysis.overlap.ranks, parts_of(page)
    assert sum(parts.values()) == pytest.approx(100, abs=0.3)
    loop_ns = ranks["loop_ns"].to_numpy().mean()
    assert parts["compute"] == pytest.approx(100 * ranks["compute_in_loop_ns"].to_numpy().mean() / loop_ns, abs=0.01)
    waits = sum(share for name, share in parts.items() if name.startswith("waiting") and "collective" not in name)
    assert waits == pytest.approx(100 * ranks["input_wait_in_loop_ns"].to_numpy().mean() / loop_ns, abs=0.1)


def test_its_numbers_are_those_of_the_json(drawn):
    found, page = drawn
    summary = found.analysis.summary
    assert carried(page, "summary") == json.loads(json.dumps({"schema_version": 1, "source": found.summary_json()}))
    data = carried(page, "data")
    line, rebuilt = data["timelines"]["source"], summary.reconstructed
    assert totals_of(line, ["read"]) == (summary.operations.read, summary.bytes.read)
    assert totals_of(line, ["write"]) == (summary.operations.write, summary.bytes.written)
    assert totals_of(line, ["metadata"])[0] == summary.operations.other
    estimated = rebuilt.read + rebuilt.write + rebuilt.other, rebuilt.bytes_read + rebuilt.bytes_written
    assert totals_of(line, ["reconstructed"]) == estimated
    traced = [each for each in data["figures"]["sizes-source"]["data"] if "reconstructed" not in each["name"]]
    classes = [row for row in found.sizes.to_pylist() if row["origin"] == "traced"]
    for axis, quantity in (("y", "operations"), ("y2", "bytes")):
        shown = sum(value or 0 for each in traced if each["yaxis"] == axis for value in each["y"])
        assert shown == sum(row[quantity] for row in classes)
    for trace, moved in zip(
        data["figures"]["course-source"]["data"][:2], (summary.bytes.read, summary.bytes.written), strict=True
    ):
        edges, rates = trace["x"], trace["y"]
        area = sum(rate * (edges[i + 1] - edges[i]) for i, rate in enumerate(rates[:-1]))
        assert area * MIB == pytest.approx(moved, rel=1e-4)


def test_plotly_accepts_the_figures_and_every_axis_says_what_it_is(drawn):
    shown = carried(drawn[1], "data")["figures"]
    assert {"course-source", "sizes-source", "heat-source", "steps-source", "offsets-source"} <= set(shown)
    for figure in shown.values():
        assert len(Figure(figure, skip_invalid=False).data)
        assert all(axis["title"]["text"] for name, axis in figure["layout"].items() if name[:5] in ("xaxis", "yaxis"))


def test_two_runs_begin_at_their_first_step(tmp_path):
    source, replay = training(tmp_path, "source"), training(tmp_path, "again", delay_ns=3_000, due=True)
    page = report_page(overview(source), overview(replay), compare(source, replay), lag_course(replay))
    assert ids_of(Elements(page)) == [*SECTIONS[:2], "comparison", *SECTIONS[2:]]
    data = carried(page, "data")
    assert data["axis"] == "time since the first step [s]"
    for line in data["timelines"].values():
        (steps,) = (track for track in line["tracks"] if (track["kind"], track["row"]) == ("step", 0))
        assert steps["start"][0] == 0
    layouts = {name: figure["layout"] for name, figure in data["figures"].items()}
    lags = [value for trace in data["figures"]["lag-replay"]["data"][:2] for value in trace["y"] if value is not None]
    assert lags == pytest.approx([3.0] * len(lags))
    for name in ("steps", "course"):
        for axis in ("yaxis", "yaxis2"):
            assert layouts[f"{name}-source"][axis]["range"] == layouts[f"{name}-replay"][axis]["range"]
    assert all(layouts[f"course-{side}"]["xaxis"]["title"]["text"] == data["axis"] for side in ("source", "replay"))


def test_heat_maps_of_two_captures_have_the_scale_of_the_busier_one():
    heats = [{"type": "heatmap", "zmax": top, "colorbar": {"tickvals": [0, top]}} for top in (1, 5)]
    align([{"layout": {}, "data": [heat]} for heat in heats])
    assert [(heat["zmax"], heat["colorbar"]) for heat in heats] == [(5, {"tickvals": [0, 5]})] * 2


def test_a_capture_without_anything_and_a_window_have_pages(tmp_path):
    window = overview(part_of(training(tmp_path), Part(from_ns=150 * MS, until_ns=200 * MS)))
    assert carried(report_page(window), "data")["whole"] == [150 * MS, 200 * MS], "in its own times"
    page = page_of(build_capture(tmp_path))[1]
    assert ids_of(Elements(page)) == ["answer", "timeline", "findings", "files", "unseen", "numbers"]
    assert len(page.encode()) < 1_000_000
    assert lag_course(build_capture(tmp_path, name="again")) is None


def test_the_bundle_is_the_one_that_its_sources_name():
    folder = files("dxt_replay.replay.show.page") / "vendor"
    listed = (folder / "SOURCES.md").read_text(encoding="utf-8")
    (bundle,) = [entry for entry in folder.iterdir() if entry.name.endswith(".js.gz")]
    assert f"`{bundle.name}`" in listed
    assert hashlib.sha256(gzip.decompress(bundle.read_bytes())).hexdigest() in listed
    assert "MIT" in (folder / "LICENSE.plotly").read_text(encoding="utf-8")


def test_rows_of_the_timeline(tmp_path):
    """An evaluation stands in the row of the loop; a lane has the name of its number, and its role if that is known."""
    spans = [Span("step", 0, 10 * MS, step=0), Span("other", 10 * MS, 30 * MS, name="evaluation")]
    known = lanes_table([(0, 0, "here", 1, None), (0, 1, "here", 2, "worker")])
    ops = [read(0, length=1, lane=lane) for lane in range(2)]
    line = timeline(overview(build_capture(tmp_path, files=["/a"], ops=ops, spans=spans, lanes=known)), 0)
    assert line["rows"] == ["r0 steps", "r0 loop", "r0 lane 0", "r0 lane 1 (worker)"]
    assert line["lanes"] == [False, False, True, True]
    assert {track["row"] for track in line["tracks"] if track["kind"] == "evaluation"} == {1}


def test_a_timeline_of_many_ranks_says_what_it_leaves_out(tmp_path):
    ops = [read(0, length=rank + 1, rank=rank, lane=lane) for rank in range(30) for lane in range(10)]
    page = page_of(build_capture(tmp_path, ops=ops, files=["/a"]))[1]
    line = carried(page, "data")["timelines"]["source"]
    assert (len(line["rows"]), len(set(line["ranks"]))) == (60, 6)
    assert totals_of(line, ["read"]) == (60, 10 * sum(rank + 1 for rank in set(line["ranks"])))
    assert "60 operations, each as a bar of its own. Shown are 6 of 30 ranks" in page
    assert carried(page, "summary")["source"]["operations"]["read"] == 300


def test_many_files_are_cut_and_their_totals_are_not(tmp_path):
    """Long paths are cut too. Only a file that is left out was read twice: its column and its total say so."""
    count = TABLE_ROWS + 1
    paths = [f"/{'x' * 3_000}/{number:05}" for number in range(count)]
    ops = [read(number, length=10, start_ns=number * MS) for number in range(count - 1)]
    ops += [read(count - 1, length=1, start_ns=(count + again) * MS) for again in range(2)]
    page = page_of(build_capture(tmp_path, ops=ops, files=paths))[1]
    assert len(page.encode()) < 1_500_000
    table, _, foot = page[page.index("<caption>Files") :].partition("</table>")[0].partition("<tfoot>")
    assert table.count(f"{'x' * 100}/00") == TABLE_ROWS
    assert f"/{count - 1:05}<" not in table
    assert ">read again<" in table
    assert f"all {count}" in foot
    assert f'data-v="{10 * (count - 1) + 2}"' in foot
    assert foot.count('data-v="1">') == 1
    assert "and 1 more, which the totals include" in page


@pytest.mark.slow
def test_a_million_operations_of_256_ranks_stay_small(tmp_path):
    """Incompressible times, sizes and offsets, with steps: bars and page stay within their budgets."""
    count = mixed_capture(tmp_path / "a.capture", 1_024_000, ranks=256, files=100)
    found, page = page_of(open_capture(tmp_path / "a.capture"))
    assert len(page.encode()) < 3_000_000
    assert found.analysis.summary.operations.read + found.analysis.summary.operations.write == count
    assert 0 < sum(len(bars.start_ns) for bars in found.lanes.tracks.values()) <= BARS + BARS * 3 // 16 * 2
