"""The spans of a job's ranks, where the ranks are merged twice."""

from __future__ import annotations

from pathlib import Path

from dxt_replay.profiler_merge.job_spans import JobSpans
from tests.kineto_writer import START_NS
from tests.profiler_merge.test_profile_merge import profile


def test_what_is_forgotten_is_found_again(tmp_path: Path) -> None:
    path = profile(tmp_path / "a.pt.trace.json")
    spans = JobSpans(profiles={0: [path]}, start_ns=START_NS, ranks=[0, 1], loops={})
    warnings, once = spans.add_rest(), spans.table()
    assert set(once["rank"].to_pylist()) == {0, 1}
    spans.forget()
    assert spans.table().num_rows == 0
    assert (spans.add_rest(), spans.table()) == (warnings, once)
