"""TensorFlow's trace.json.gz: events, steps and date, of the real sample and of small files."""

import gzip
import json

import numpy as np
import pytest

from dxt_replay.profiler_merge.profiles.reading import read_profile
from dxt_replay.profiler_merge.profiles.spans import profile_spans
from dxt_replay.profiler_merge.recognise import find_profiles
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.schema import SPAN_KINDS
from tests.places import SHARED

SAMPLE = SHARED / "other-sources" / "tf-legacy"
START_US = 1_596_659_864_545_103


def event(name, ts, dur, tid=7, **args):
    return {"pid": 49, "tid": tid, "ts": ts, "dur": dur, "name": name, "ph": "X", "args": args}


def trace(path, *events):
    meta = [{"ph": "M", "pid": 49, "name": "process_name", "args": {"name": "/host:CPU"}}]
    text = json.dumps({"displayTimeUnit": "ns", "metadata": {}, "traceEvents": [*meta, *events, {}]})
    path.write_bytes(gzip.compress(text.encode()))
    return path


def lengths_ms(profile):
    spans = profile_spans(profile)
    length = (spans.end_ns - spans.start_ns) / 1e6
    return {SPAN_KINDS[kind]: float(length[spans.kind == kind].sum()) for kind in np.unique(spans.kind)}


@pytest.mark.skipif(not SAMPLE.exists(), reason="the samples of other sources are not here")
def test_the_sample():
    (path,) = find_profiles(SAMPLE)
    profile = read_profile([path])
    assert len(profile) == 798
    # The debugger's file says when the profile began and ended: all events lie in between.
    assert profile.epoch_start_ns == START_US * 1000
    assert profile.start_ns.min() >= START_US * 1000
    assert profile.end_ns.max() <= 1_596_659_864_854_168_000
    found = lengths_ms(profile)
    assert found["step"] == pytest.approx(84.553)
    assert found["input_wait"] == pytest.approx(51.522)


def test_steps_and_arguments(tmp_path):
    path = trace(
        tmp_path / "a.trace.json.gz",
        *(event("train", 1000.5 + 100 * step, 90, step_num=str(step), group_id="0") for step in range(3)),
        event("Mul:Mul", 1010, 20, id=str((1 << 64) - 1)),
        {"ph": "M", "pid": 49, "tid": 7, "name": "thread_name", "args": {"name": "python"}},
    )
    profile = read_profile([path])
    assert profile.epoch_start_ns is None
    rows, steps = profile.stat("step_num")
    assert steps.tolist() == [0, 1, 2]
    assert profile.start_ns[rows].tolist() == [1_000_500, 1_100_500, 1_200_500]
    assert profile.stat("id")[1].tolist() == [-1]
    assert [line.name for line in profile.lines] == ["python"]


def test_an_xplane_beside_it_is_preferred(tmp_path):
    trace(tmp_path / "host.trace.json.gz", event("train", 0, 1))
    (tmp_path / "host.xplane.pb").write_bytes(b"")
    assert [path.name for path in find_profiles(tmp_path)] == ["host.xplane.pb"]


def test_damage(tmp_path):
    path = trace(tmp_path / "a.trace.json.gz", *(event("train", step, 1, step_num=step) for step in range(5000)))
    path.write_bytes(path.read_bytes()[:-200])
    cut = read_profile([path])
    assert 0 < len(cut) < 5000
    assert "is damaged after" in cut.warnings[0]
    with pytest.raises(ProfileError, match="no events"):
        read_profile([trace(tmp_path / "b.trace.json.gz")])
