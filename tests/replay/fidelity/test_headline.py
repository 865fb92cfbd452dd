"""A comparison says what its result rests on: rows rebuilt from counters, a slow tracer, a replay that was stopped."""

from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.replay.fidelity.compare import compare
from dxt_replay.traces.schema import CaptureInfo, Job, Source
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import write_capture_info
from tests.capture_builder import Span, build_capture, read

MS = 1_000_000


@pytest.mark.parametrize(("rebuilt", "said"), [(0, False), (1, True), (4, True)])
def test_the_share_from_counters_is_in_the_headline(rebuilt: int, said: bool, tmp_path: Path) -> None:
    origins = ["reconstructed"] * rebuilt + ["traced"] * (4 - rebuilt)
    ops = [
        read(0, offset=100 * i, length=100, start_ns=i * MS, end_ns=i * MS + MS // 2, origin=origin)
        for i, origin in enumerate(origins)
    ]
    source = build_capture(tmp_path, files=["/data"], ops=ops, name="source")
    found = compare(source, build_capture(tmp_path, files=["/data"], ops=ops, name="replay", replay_of=source))
    assert found.workload.reconstructed == {"operations": rebuilt, "bytes": 100 * rebuilt, "pct": 25.0 * rebuilt}
    assert (f"{25 * rebuilt} % of the recorded reads and writes were rebuilt from counters" in found.headline) is said


def test_a_replay_that_was_stopped_is_named_so(tmp_path: Path) -> None:
    ops = [read(0, offset=100 * i, length=100, start_ns=i * MS, end_ns=i * MS + MS // 2) for i in range(4)]
    source = build_capture(tmp_path, files=["/data"], ops=ops, name="source")
    whole = build_capture(tmp_path, files=["/data"], ops=ops[:2], name="replay", replay_of=source)
    assert compare(source, whole).headline.startswith("FAILED: the replay did not do the same work")
    write_capture_info(whole.path, replace(whole.info, partial=True))
    cut = compare(source, open_capture(whole.path))
    assert cut.headline.startswith("FAILED: the replay was stopped before its end and so did not do the same work")


@pytest.mark.parametrize("extended", [0, 3])
def test_the_share_of_steps_without_a_profile_is_in_the_headline(extended: int, tmp_path: Path) -> None:
    ops = [read(0, offset=100 * i, length=100, start_ns=i * MS, end_ns=i * MS + MS // 2) for i in range(4)]
    spans = [
        Span("step", i * MS, (i + 1) * MS, step=i, origin="reconstructed" if i < extended else "traced")
        for i in range(4)
    ]
    source = build_capture(tmp_path, files=["/data"], ops=ops, spans=spans, name="source")
    replay = build_capture(tmp_path, files=["/data"], ops=ops, spans=spans, name="replay", replay_of=source)
    found = compare(source, replay)
    assert found.workload.extended_steps_pct == 25.0 * extended
    assert ("75 % of the training steps were not profiled" in found.headline) is bool(extended)


@pytest.mark.parametrize(("kind", "named"), [("darshan", None), ("strace", "strace"), ("dftracer", "DFTracer")])
def test_a_tracer_that_slows_every_call_is_named(kind: str, named: str | None, tmp_path: Path) -> None:
    ops = [read(0, offset=100 * i, length=100, start_ns=i * MS, end_ns=i * MS + MS // 2) for i in range(4)]
    job = Job(nprocs=1, run_time_s=0.01)
    info = CaptureInfo(job=job, ranks=(0,), sources=(Source(name="job.log", sha256="0", kind=kind),))
    source = build_capture(tmp_path, files=["/data"], ops=ops, name="source", info=info)
    headline = compare(source, build_capture(tmp_path, files=["/data"], ops=ops, replay_of=source)).headline
    assert (f"include what {named} added to every call" in headline) is (named is not None)
    assert ("added to every call" in headline) is (named is not None)
