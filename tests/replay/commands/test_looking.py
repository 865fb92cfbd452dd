"""Opening captures and logs, and looking at them, through the public interface."""

from __future__ import annotations

import gc
import json
from pathlib import Path

import pandas as pd
import pytest

import dxt_replay
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, Span, build_capture, read, write


@pytest.fixture(scope="module")
def imagenet(tmp_path_factory: pytest.TempPathFactory) -> Capture:
    files = dxt_replay.sample("imagenet")
    path = tmp_path_factory.mktemp("imagenet") / "imagenet.capture"
    merged = dxt_replay.merge(files.log, path, profiles=files.profiles)
    assert merged.as_json()["ranks"] == 2
    return dxt_replay.open_capture(path)


def test_a_log_is_a_capture_as_long_as_somebody_holds_it() -> None:
    log = dxt_replay.open_capture(dxt_replay.sample("imagenet").log)
    folder = log.path.parent
    part = dxt_replay.part(log, ranks="0")
    del log
    gc.collect()
    assert folder.exists()
    assert dxt_replay.summary(part).operations.read > 0
    del part
    gc.collect()
    assert not folder.exists()


def test_a_folder_of_logs_is_a_capture_too(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "job.darshan").symlink_to(dxt_replay.sample("imagenet").log)
    assert dxt_replay.summary(tmp_path / "logs").as_json()["job"]["nprocs"] == 2


def test_a_path_is_as_good_as_a_capture(imagenet: Capture) -> None:
    assert dxt_replay.summary(imagenet.path) == dxt_replay.summary(str(imagenet.path)) == dxt_replay.summary(imagenet)


@pytest.mark.parametrize("name", sorted(set(dxt_replay.TABLES) - {"tfrecords", "datasets", "requests"}))
def test_every_table_is_a_data_frame_with_rows(imagenet: Capture, name: str) -> None:
    frame = dxt_replay.table(imagenet, name)
    assert isinstance(frame, pd.DataFrame)
    assert len(frame)


def test_tables_of_contents_say_which_files_could_not_be_read(imagenet: Capture) -> None:
    unread = dxt_replay.table(imagenet, "tfrecords").attrs["unread"]
    assert unread
    assert all(unread.values())


def test_operations_are_the_stored_rows(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/a"], ops=[read(0, length=4, start_ns=5), write(0, length=2, start_ns=1)])
    frame = dxt_replay.table(capture, "operations")
    assert frame["start_ns"].tolist() == [1, 5]
    assert frame["op"].tolist() == ["write", "read"]


def test_a_table_or_figure_that_there_is_not_is_a_usage_error(imagenet: Capture) -> None:
    with pytest.raises(dxt_replay.UsageError, match="'step' is not a table: choose findings, "):
        dxt_replay.table(imagenet, "step")
    with pytest.raises(dxt_replay.UsageError, match="'pie' is not a figure: choose timeline, "):
        dxt_replay.figure(imagenet, "pie")
    with pytest.raises(dxt_replay.UsageError, match="is not a replay"):
        dxt_replay.figure(imagenet, "lag")


def test_results_are_json(imagenet: Capture) -> None:
    for result in (
        dxt_replay.summary(imagenet),
        dxt_replay.timeline(imagenet, bin="1s"),
        *dxt_replay.findings(imagenet),
    ):
        assert json.loads(json.dumps(result.as_json()))


def test_a_timeline_has_bins_of_the_width_asked_for(imagenet: Capture) -> None:
    course = dxt_replay.timeline(imagenet, bin="500ms", per_rank=True)
    assert course.bin_ns == 500_000_000
    assert course.ranks == (0, 1)


@pytest.mark.parametrize("name", ["timeline", "bandwidth", "heat", "sizes", "steps"])
def test_figures_are_plotly_figures(imagenet: Capture, name: str) -> None:
    figure = dxt_replay.figure(imagenet, name)
    assert len(figure.data)
    assert figure.layout.xaxis.title.text


def test_the_timeline_shows_each_operation_of_a_small_capture(tmp_path: Path) -> None:
    capture = build_capture(
        tmp_path,
        files=["/<b>.bin"],
        ops=[read(0, length=4096, start_ns=0, end_ns=1_000_000), write(0, length=1, rank=1, start_ns=5_000_000)],
        spans=[Span("compute", start_ns=2_000_000, end_ns=3_000_000, step=0)],
    )
    figure = dxt_replay.figure(capture, "timeline")
    reads = next(trace for trace in figure.data if trace.name == "read")
    assert list(reads.x) == [0.001]
    assert reads.y[0] == "r0 lane 0"
    assert reads.hovertext[0] == "read, 1 ms, 4.00 KiB<br>/&lt;b&gt;.bin"
    assert {"r0 lane 0", "r1 lane 0"} <= set(figure.layout.yaxis.categoryarray)


def test_a_part_is_a_capture(imagenet: Capture) -> None:
    part = dxt_replay.part(imagenet, steps="0-9", ranks="1")
    assert part.ranks == (1,)
    assert dxt_replay.table(part, "steps")["step"].tolist() == list(range(10))
    with pytest.raises(dxt_replay.UsageError, match="no rank 7"):
        dxt_replay.part(imagenet, ranks="7")


def test_a_capture_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    capture = build_capture(tmp_path / "<i>", files=[File("/a")], ops=[read(0, length=1)])
    assert repr(capture).startswith(f"<Capture {str(capture.path)!r}: 1 ranks, 1 operations, 1 files")
    html = capture._repr_html_()
    assert "<i>" not in html
    assert "&lt;i&gt;" in html
    assert "<th>operations</th><td>1</td>" in html
