"""The HTML page as text: what is in it, what it must not hold, how large it is. A browser opens it in another file."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from plotly.graph_objects import Figure

from dxt_replay.profiler_merge.analysis.bars import MOST_BARS as BARS
from dxt_replay.profiler_merge.analysis.overview import overview
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.replay.fidelity.compare import compare
from dxt_replay.replay.show.page.data import lag_course, timeline_json
from dxt_replay.replay.show.page.figures import KIND_COLOURS, SAND
from dxt_replay.replay.show.page.html import TABLE_ROWS, report_page
from dxt_replay.replay.show.page.html_tables import html_text
from dxt_replay.replay.show.summary_sections import storage_cost
from dxt_replay.traces.part import Part
from dxt_replay.traces.samples import sample
from dxt_replay.traces.schema import OPS_SCHEMA, READ, CaptureInfo, Job, table_from_columns
from dxt_replay.traces.store.part_capture import part_of
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.store.writer import OpsWriter, create_capture, write_capture_info, write_files, write_spans
from dxt_replay.traces.units import MIB
from tests.capture_builder import File, Span, build_capture, files_table, lanes_table, read, spans_table
from tests.replay.show.page.pages import HOSTILE, MS, SHOWN, Elements, carried, page_of, training

MOST_BYTES = 1_500_000
SECTIONS = (
    "job", "timeline", "findings", "figures", "health", "offsets", "course", "heat", "steps", "sizes", "ranks",
    "files", "totals", "glossary",
)  # fmt: skip


def totals_of(timeline: Mapping[str, Any], kinds: Sequence[str]) -> tuple[int, int]:
    """(operations, bytes) of the bars of some kinds in what `timeline_json` returned."""
    tracks = [track for track in timeline["tracks"] if track["kind"] in kinds]
    operations = sum(sum(track["operations"]) if "operations" in track else len(track["start"]) for track in tracks)
    return operations, sum(sum(track.get("bytes", ())) for track in tracks)


@pytest.fixture(scope="module", params=["imagenet", "cosmictagger"])
def drawn(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple:
    """Overview and page of a bundled capture."""
    recorded = sample(request.param)
    path = tmp_path_factory.mktemp("report") / f"{request.param}.capture"
    merge([recorded.log], list(recorded.profiles), path)
    return page_of(open_capture(path))


def test_all_sections_are_there_and_well_formed(drawn: tuple) -> None:
    elements = Elements(drawn[1])
    assert elements.open == []
    assert tuple(section["id"] for section in elements.of("section")) == SECTIONS
    assert {link["href"] for link in elements.of("a")} == {f"#{name}" for name in SECTIONS}
    ids = [attributes["id"] for _, attributes in elements.tags if "id" in attributes]
    assert len(ids) == len(set(ids)), "an id stands twice"


def test_it_is_small_and_fetches_nothing(drawn: tuple) -> None:
    page = drawn[1]
    assert len(page.encode()) < 1_000_000
    elements = Elements(page)
    assert not [attributes for _, attributes in elements.tags if "src" in attributes]
    assert [link["href"] for link in elements.of("link")] == ["data:,"]
    policy = next(meta["content"] for meta in elements.of("meta") if "http-equiv" in meta)
    assert policy is not None
    assert policy.startswith("default-src 'none'; script-src 'nonce-")
    runs = [script for script in elements.of("script") if script.get("type") is None]
    assert len(runs) == 1
    assert f"'nonce-{runs[0]['nonce']}'" in policy


def test_totals_are_those_of_the_summary(drawn: tuple) -> None:
    found, page = drawn
    summary = found.analysis.summary
    assert carried(page, "summary")["source"] == carried_form(summary.as_json())
    data = carried(page, "data")
    timeline = data["timelines"]["source"]
    assert totals_of(timeline, ["read"]) == (summary.operations.read, summary.bytes.read)
    assert totals_of(timeline, ["write"]) == (summary.operations.write, summary.bytes.written)
    assert totals_of(timeline, ["metadata"])[0] == summary.operations.other
    rebuilt = summary.reconstructed
    assert totals_of(timeline, ["reconstructed"]) == (
        rebuilt.read + rebuilt.write + rebuilt.other,
        rebuilt.bytes_read + rebuilt.bytes_written,
    )
    sizes = data["figures"]["sizes-source"]["data"]
    traced = [trace for trace in sizes if "reconstructed" not in trace["name"]]
    classes = [row for row in found.sizes.to_pylist() if row["origin"] == "traced"]
    for axis, quantity in (("y", "operations"), ("y2", "bytes")):
        shown = sum(value or 0 for trace in traced if trace["yaxis"] == axis for value in trace["y"])
        assert shown == sum(row[quantity] for row in classes)


def test_the_area_under_the_bandwidth_is_what_was_moved(drawn: tuple) -> None:
    found, page = drawn
    read, written = carried(page, "data")["figures"]["course-source"]["data"][:2]
    for trace, moved in ((read, found.analysis.summary.bytes.read), (written, found.analysis.summary.bytes.written)):
        x, y = trace["x"], trace["y"]
        area = sum(rate * (x[i + 1] - x[i]) for i, rate in enumerate(y[:-1]))
        assert area * MIB == pytest.approx(moved, rel=1e-4)


def test_every_axis_says_its_unit(drawn: tuple) -> None:
    shown = carried(drawn[1], "data")["figures"]
    for name, figure in shown.items():
        for axis, layout in figure["layout"].items():
            if axis[:5] in ("xaxis", "yaxis"):
                assert layout["title"]["text"], f"{axis} of {name}"
    titles = {
        name: [figure["layout"][axis]["title"]["text"] for axis in ("xaxis", "yaxis")] for name, figure in shown.items()
    }
    assert titles["course-source"] == ["time [s]", "bandwidth<br>[MiB/s]"]
    assert titles["steps-source"] == ["step", "time per step [ms]"]


def test_plotly_accepts_the_figures(drawn: tuple) -> None:
    shown = {name: Figure(figure) for name, figure in carried(drawn[1], "data")["figures"].items()}
    assert set(shown) == {"course-source", "sizes-source", "heat-source", "steps-source"}
    assert all(len(figure.data) for figure in shown.values())


def test_the_sample_rule_is_stated(drawn: tuple) -> None:
    found, page = drawn
    lanes = found.lanes
    said = re.search(r"All ([\d,]+) operations are in this timeline, (each as a bar of its own|in ([\d,]+) bars)", page)
    assert said
    assert int(said[1].replace(",", "")) == lanes.operations
    assert (said[2] == "each as a bar of its own") == (lanes.resolution_ns == 0)
    if lanes.resolution_ns:
        assert int(said[3].replace(",", "")) == lanes.bars


def carried_form(value: object) -> object:
    """As JSON has it: tuples are lists."""
    if isinstance(value, dict):
        return {str(key): carried_form(inner) for key, inner in value.items()}
    return [carried_form(inner) for inner in value] if isinstance(value, (list, tuple)) else value


def test_recorded_paths_stay_text(tmp_path: Path) -> None:
    _, page = page_of(training(tmp_path))
    elements = Elements(page)
    assert elements.open == []
    assert set(SHOWN) <= set(elements.cells)
    assert not elements.of("img")
    assert not elements.of("svg")
    assert not [attributes for _, attributes in elements.tags for name in attributes if name.startswith("on")]
    assert {link["href"] for link in elements.of("a")} == {f"#{name}" for name in SECTIONS}
    assert "window.hacked=1<" not in page
    assert set(carried(page, "data")["timelines"]["source"]["files"].values()) == set(SHOWN)


def test_every_operation_of_a_small_capture_is_a_bar(tmp_path: Path) -> None:
    found, page = page_of(training(tmp_path))
    timeline = carried(page, "data")["timelines"]["source"]
    assert found.lanes.resolution_ns == 0
    assert all("operations" not in track for track in timeline["tracks"])
    assert totals_of(timeline, ["read"]) == (20 * len(HOSTILE), 20 * len(HOSTILE) * 4096)
    write = next(track for track in timeline["tracks"] if track["kind"] == "write")
    assert (write["start"], write["length"], write["bytes"], write["offset"]) == ([400 * MS], [MS], [123_457], [0])
    assert timeline["rows"] == [
        "r0 steps",
        "r0 loop",
        "r0 input",
        "r0 lane 0",
        "r1 steps",
        "r1 loop",
        "r1 input",
        "r1 lane 0",
    ]


def test_source_and_replay_side_by_side(tmp_path: Path) -> None:
    source = training(tmp_path, "source")
    replay = training(tmp_path, "again", delay_ns=3_000, due=True)
    lag = lag_course(replay)
    assert lag is not None
    page = report_page(overview(source), overview(replay), compare(source, replay), lag)
    elements = Elements(page)
    assert elements.open == []
    assert tuple(section["id"] for section in elements.of("section")) == (
        *SECTIONS[:4], "fidelity", "lag", *SECTIONS[4:],
    )  # fmt: skip
    data = carried(page, "data")
    assert set(data["timelines"]) == {"source", "replay"}
    assert {timeline["from_ns"] for timeline in data["timelines"].values()} == {0}
    assert len({timeline["until_ns"] for timeline in data["timelines"].values()}) == 1
    shown = data["figures"]
    assert {f"{name}-{side}" for name in ("course", "sizes", "heat", "steps") for side in ("source", "replay")} < set(
        shown
    )
    mean, most = shown["lag-replay"]["data"][:2]
    assert {round(value, 6) for value in (*mean["y"], *most["y"]) if value is not None} == {3.0}
    assert shown["steps-source"]["layout"]["yaxis"]["range"] == shown["steps-replay"]["layout"]["yaxis"]["range"]
    for axis in ("xaxis", "yaxis", "yaxis2"):
        assert shown["course-source"]["layout"][axis]["range"] == shown["course-replay"]["layout"][axis]["range"]


def test_a_capture_without_anything_has_a_page(tmp_path: Path) -> None:
    _, page = page_of(build_capture(tmp_path))
    elements = Elements(page)
    assert elements.open == []
    sections = [section["id"] for section in elements.of("section")]
    assert [name for name in SECTIONS if name not in sections] == ["offsets", "steps", "sizes"]


def test_a_page_of_nothing_is_small(tmp_path: Path) -> None:
    assert len(page_of(build_capture(tmp_path))[1].encode()) < 1_000_000


def test_the_bundle_is_the_one_that_its_sources_name() -> None:
    folder = files("dxt_replay.replay.show.page") / "vendor"
    listed = (folder / "SOURCES.md").read_text(encoding="utf-8")
    (bundle,) = [entry for entry in folder.iterdir() if entry.name.endswith(".js.gz")]
    assert f"`{bundle.name}`" in listed
    assert hashlib.sha256(gzip.decompress(bundle.read_bytes())).hexdigest() in listed
    assert "MIT" in (folder / "LICENSE.plotly").read_text(encoding="utf-8")


def test_the_first_lines_say_what_ran_and_what_storage_cost(drawn: tuple) -> None:
    found, page = drawn
    assert f"with {found.analysis.summary.steps.count} training steps" in page
    loop = found.analysis.summary.loop
    said = re.search(r"Infinitely fast storage would save at most [^,]+, ([\d.]+) % of the loop", page)
    assert said
    assert float(said[1]) == pytest.approx(loop.storage_gain_pct, abs=0.05)
    assert said[0] in " ".join(storage_cost(found.analysis.summary)), "the page and the terminal differ"
    tiles = dict(re.findall(r"<dt>([^<]*)</dt><dd><strong>([^<]*)</strong>", page))
    assert tiles["compute"] == f"{loop.compute_pct:.1f} %"
    assert "/scratch (ext4): " in page
    head = page[page.index('id="job"') : page.index('id="timeline"')]
    listed = re.findall(r'<li><span class="mark \w+">\w+</span> (.*?)</li>', head)
    assert len(listed) == min(len(found.findings), 3)
    for line, finding in zip(listed, found.findings, strict=False):
        assert line.startswith(html_text(finding.title))
        assert re.search("at most |the same ", line) or finding.at_stake_s is None


def test_an_evaluation_is_drawn_in_the_row_of_the_loop(tmp_path: Path) -> None:
    spans = [Span("step", 0, 10 * MS, step=0), Span("other", 10 * MS, 30 * MS, name="evaluation")]
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=1)], spans=spans)
    timeline = timeline_json(page_of(capture)[0], 0)
    (row,) = (track["row"] for track in timeline["tracks"] if track["kind"] == "evaluation")
    assert timeline["rows"][row].endswith("loop")


def test_a_lane_is_labelled_by_its_role_where_that_is_known(tmp_path: Path) -> None:
    known = lanes_table([(0, 0, "here", 1, None), (0, 1, "here", 2, "worker")])
    ops = [read(0, length=1, lane=lane) for lane in range(2)]
    timeline = timeline_json(page_of(build_capture(tmp_path, files=["/a"], ops=ops, lanes=known))[0], 0)
    assert (timeline["rows"], timeline["lanes"]) == (["r0 lane 0", "r0 worker 1"], [True, True])


def test_kinds_that_share_a_chart_have_their_own_colours() -> None:
    colours = {kind: KIND_COLOURS[kind] for kind in KIND_COLOURS if kind != "collective"}
    assert len(set(colours.values())) == len(colours), "only metadata and collectives, of different rows, share one"
    assert SAND not in KIND_COLOURS.values()


def test_charts_have_names(drawn: tuple) -> None:
    names = [element["aria-label"] for element in Elements(drawn[1]).of("div") if element.get("role") == "img"]
    assert "Timeline of operations by rank and thread" in names
    assert len(set(names)) == len(names)
    assert not [name for name in names if name is None or len(name) < 20]


def test_a_timed_replay_has_no_input_wait_but_the_waits_of_its_schedule(tmp_path: Path) -> None:
    source, replay = training(tmp_path, "source"), training(tmp_path, "again", delay_ns=3_000, due=True)
    before, after = overview(source), overview(replay)
    waits = {track for track in before.loops.tracks if track[1] == "input wait"}
    without = {track: bars for track, bars in after.loops.tracks.items() if track not in waits}
    made_by = {"command": "run", "pace": "timed", "speed": 1.0}
    after = dataclasses.replace(
        after,
        info=dataclasses.replace(after.info, made_by=made_by),
        loops=dataclasses.replace(after.loops, tracks=without),
    )
    page = report_page(before, after, compare(source, replay), lag_course(replay))
    replayed = page.partition('id="figures"')[2].split("Replay: again")[1]
    values = dict(re.findall(r"<dt>([^<]*)</dt><dd><strong>([^<]*)</strong>", replayed))
    assert values["input wait"] == "-"
    assert "run time" not in values
    elapsed = re.findall(r"<dt>elapsed</dt><dd><strong>([^<]*)</strong>", page)
    assert len(elapsed) == 2
    kinds = {track["kind"] for track in carried(page, "data")["timelines"]["replay"]["tracks"]}
    assert "input wait" in kinds


def test_a_window_is_shown_in_its_own_times(tmp_path: Path) -> None:
    found = overview(part_of(training(tmp_path), Part(from_ns=150 * MS, until_ns=200 * MS)))
    data = carried(report_page(found), "data")["timelines"]["source"]
    assert (data["from_ns"], data["until_ns"]) == (150 * MS, 200 * MS)


def test_a_timeline_of_many_ranks_says_what_it_leaves_out(tmp_path: Path) -> None:
    ops = [read(0, length=rank + 1, rank=rank, lane=lane) for rank in range(30) for lane in range(10)]
    _, page = page_of(build_capture(tmp_path, ops=ops, files=["/a"]))
    timeline = carried(page, "data")["timelines"]["source"]
    assert len(timeline["rows"]) == 60
    assert len(timeline["ranks"]) == 6
    operations, moved = totals_of(timeline, ["read"])
    assert (operations, moved) == (60, 10 * sum(rank + 1 for rank in timeline["ranks"]))
    assert "All of the shown ranks&#x27; 60 operations are in this timeline" in page
    assert "room for the lanes of 6 of 30 ranks" in page
    totals = carried(page, "summary")["source"]
    assert totals["operations"]["read"] == 300


def test_many_files_are_cut_and_their_totals_are_not(tmp_path: Path) -> None:
    count = TABLE_ROWS[0] + 50
    ops = [read(number, length=number + 1, start_ns=number * MS) for number in range(count)]
    _, page = page_of(build_capture(tmp_path, ops=ops, files=[f"/data/{number:05}" for number in range(count)]))
    table = page[page.index("<caption>Files") :]
    assert table.count('<td class="text">/data/') == TABLE_ROWS[0]
    assert f"all {count}" in table
    assert f'data-v="{count * (count + 1) // 2}"' in table
    assert "and 50 more, which the totals include" in table


def test_long_paths_do_not_make_it_large(tmp_path: Path) -> None:
    paths = [f"/{'x' * 3_000}/{number:05}" for number in range(TABLE_ROWS[0])]
    ops = [read(number, length=1, start_ns=number * MS) for number in range(len(paths))]
    _, page = page_of(build_capture(tmp_path, ops=ops, files=paths))
    assert len(page.encode()) < MOST_BYTES
    assert page.count(f"{'x' * 100}/00007<") == 1


def test_many_operations_stay_small(tmp_path: Path) -> None:
    """Incompressible times, sizes and offsets of 400,000 operations: bars and page stay within their budgets."""
    capture = random_capture(tmp_path, ranks=8, lanes=4, per_rank=50_000)
    found, page = page_of(capture)
    assert len(page.encode()) < MOST_BYTES
    assert found.lanes.operations == capture.operation_count() == 400_000
    assert 0 < found.lanes.bars <= BARS + BARS * 3 // 16 * 2
    assert totals_of(carried(page, "data")["timelines"]["source"], ["read"]) == (
        found.analysis.summary.operations.read,
        found.analysis.summary.bytes.read,
    )


def random_capture(folder: Path, *, ranks: int, lanes: int, per_rank: int) -> Capture:
    """Reads at random times with a few sizes, lane after lane, without spans."""
    path, random = folder / "random.capture", np.random.default_rng(5)
    create_capture(path)
    with OpsWriter(path) as writer:
        for rank in range(ranks):
            start = np.cumsum(random.exponential(200_000, per_rank).astype(np.int64))
            columns = {
                "rank": np.full(per_rank, rank, dtype=np.int32),
                "lane": (np.arange(per_rank) % lanes).astype(np.int32),
                "op": np.full(per_rank, READ, dtype=np.int8),
                "api": np.zeros(per_rank, dtype=np.int8),
                "file_id": random.integers(0, 100, per_rank).astype(np.int32),
                "offset": random.integers(0, 1 << 30, per_rank),
                "length": random.integers(1, 1 << 20, per_rank),
                "start_ns": start,
                "end_ns": start + random.lognormal(10.5, 1.2, per_rank).astype(np.int64),
                "step": np.full(per_rank, -1, dtype=np.int32),
                "origin": np.zeros(per_rank, dtype=np.int8),
            }
            writer.write(table_from_columns(columns, OPS_SCHEMA))
    write_files(path, files_table([File(f"/data/{number:05}", size=1 << 31) for number in range(100)], []))
    write_spans(path, spans_table([]))
    write_capture_info(path, CaptureInfo(job=Job(nprocs=ranks, run_time_s=per_rank / 5_000), ranks=tuple(range(ranks))))
    return open_capture(path)


def test_lag_is_none_without_due_times(tmp_path: Path) -> None:
    assert lag_course(training(tmp_path)) is None


def test_the_same_capture_gives_the_same_page(tmp_path: Path) -> None:
    capture = training(tmp_path)
    assert page_of(capture)[1] == page_of(capture)[1]


def test_a_column_is_there_for_a_file_that_is_cut(tmp_path: Path) -> None:
    """Only the last of the files, which moved least, was read twice: its column and the total say so."""
    count = TABLE_ROWS[0] + 1
    ops = [read(number, length=10, start_ns=number * MS) for number in range(count - 1)]
    ops += [read(count - 1, length=1, start_ns=(count + again) * MS) for again in range(2)]
    _, page = page_of(build_capture(tmp_path, ops=ops, files=[f"/data/{number:05}" for number in range(count)]))
    table = page[page.index("<caption>Files") :]
    table = table[: table.index("</table>")]
    assert f"/data/{count - 1:05}" not in table
    assert ">read again<" in table
    assert table[table.index("<tfoot>") :].count('<td data-v="1">') == 1
