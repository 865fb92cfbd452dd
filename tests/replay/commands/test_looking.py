"""Opening captures and logs, and looking at them, through the public interface."""

from __future__ import annotations

import gc
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


@pytest.mark.parametrize("name", sorted(set(dxt_replay.TABLES) - {"tfrecords", "datasets", "requests"}))
def test_every_table_is_a_data_frame_with_rows(imagenet: Capture, name: str) -> None:
    frame = dxt_replay.table(imagenet, name)
    assert isinstance(frame, pd.DataFrame)
    assert len(frame)


def test_a_table_or_figure_that_there_is_not_is_a_usage_error(imagenet: Capture) -> None:
    with pytest.raises(dxt_replay.UsageError, match="'step' is not a table: choose findings, "):
        dxt_replay.table(imagenet, "step")
    with pytest.raises(dxt_replay.UsageError, match="'pie' is not a figure: choose timeline, "):
        dxt_replay.figure(imagenet, "pie")
    with pytest.raises(dxt_replay.UsageError, match="is not a replay"):
        dxt_replay.figure(imagenet, "lag")


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


def test_a_capture_shows_itself_in_a_notebook(tmp_path: Path) -> None:
    capture = build_capture(tmp_path / "<i>", files=[File("/a")], ops=[read(0, length=1)])
    assert repr(capture).startswith(f"<Capture {str(capture.path)!r}: 1 ranks, 1 operations, 1 files")
    html = capture._repr_html_()
    assert "<i>" not in html
    assert "&lt;i&gt;" in html
    assert "<th>operations</th><td>1</td>" in html
