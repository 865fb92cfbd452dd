"""Several recordings of one process, one after the other, are one training whose steps are numbered on."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.traces.errors import ProfileError
from dxt_replay.traces.store.reader import Capture, open_capture
from tests import kineto_writer as kineto
from tests.profiler_merge.test_merge_torch import PIDS, START_S, log
from tests.xplane_writer import Event, Line, profile

SECOND = 10**9


def torch_profile(path: Path, first_s: int) -> Path:
    """Two steps numbered 0 and 1 that compute, and a mark that stays open over the anchors of the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    zero = START_S * SECOND - kineto.START_NS + first_s * SECOND
    own = {"pid": PIDS[0], "tid": PIDS[0]}
    events = [kineto.mark(n, zero + n * SECOND, zero + (n + 1) * SECOND, **own) for n in range(3)]
    events += [kineto.event("aten::add", zero + n * SECOND + 1000, zero + n * SECOND + 9000, **own) for n in range(3)]
    events += [kineto.anchor(i, zero + 2 * SECOND + SECOND // 2 + i * 10**6, pid=PIDS[0]) for i in range(3)]
    return kineto.write(path, events)


def keras_profile(path: Path, first_s: int) -> Path:
    """Two steps numbered 0 and 1."""
    path.parent.mkdir(parents=True, exist_ok=True)
    steps = [
        Event(name="train", start_ns=n * SECOND, duration_ns=SECOND - 1, stats={"step_num": n, "_r": 1})
        for n in range(2)
    ]
    lines = [Line(id=77, name="python", events=tuple(steps))]
    begin = (START_S + first_s) * SECOND
    path.write_bytes(profile(lines, begin, begin + 2 * SECOND).replace(b"node1", b"node0"))  # as the log
    return path


def steps_of(folder: Path, profiles: list[Path]) -> tuple[list[int], list[int], Capture]:
    """Numbers of the steps, and the seconds of the log's clock at which they began."""
    result = merge([log(folder, PIDS[0], anchors=False)], profiles, folder / "a.capture", MergeOptions(align="0"))
    capture = open_capture(result.capture)
    steps = capture.spans.filter(pc.equal(capture.spans["kind"].cast(pa.string()), "step"))
    begins = [round(begin / SECOND) for begin in steps["start_ns"].to_pylist()]
    return steps["step"].to_pylist(), begins, capture


def test_two_recordings_of_a_torch_process_are_one_training(tmp_path: Path) -> None:
    name = f"node0_{PIDS[0]}.17953091012609939%02d.pt.trace.json"
    profiles = [
        torch_profile(tmp_path / "rank0/phase2" / (name % 2), 5),
        torch_profile(tmp_path / "rank0" / (name % 1), 1),
    ]
    numbers, begins, _ = steps_of(tmp_path, profiles)
    assert numbers == [0, 1, 2, 3]
    assert [begin - begins[0] for begin in begins] == [0, 1, 4, 5]


@pytest.mark.parametrize("second", ["rank0/phase2/plugins/profile/b", "rank0/plugins/profile/b"])
def test_two_fits_of_a_keras_program_are_one_training(tmp_path: Path, second: str) -> None:
    profiles = [
        keras_profile(tmp_path / second / "node.xplane.pb", 5),
        keras_profile(tmp_path / "rank0/plugins/profile/a/node.xplane.pb", 1),
    ]
    numbers, begins, capture = steps_of(tmp_path, profiles)
    assert numbers == [0, 1, 2, 3]
    assert [begin - begins[0] for begin in begins] == [0, 1, 4, 5]
    assert [source.kind for source in capture.info.sources] == ["darshan", "xplane", "xplane"]


def test_profiles_of_one_rank_and_one_time_are_refused(tmp_path: Path) -> None:
    profiles = [keras_profile(tmp_path / f"rank0/{run}/node.xplane.pb", 1) for run in ("a", "b")]
    with pytest.raises(ProfileError, match="are both of rank 0"):
        steps_of(tmp_path, profiles)
