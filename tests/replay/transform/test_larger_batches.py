from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dxt_replay import open_capture, transform
from dxt_replay.replay.transform.result import Transformed
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture
from tests import simulated_application
from tests.capture_builder import build_capture
from tests.simulated_application import MS, US, Application, Storage

STORAGE = Storage(latency_ns=300 * US)
BASE = Application(depth=4, readers=2, ranks=2, collective_ns=500 * US, jitter=0.0)
FILES = ["/data/train", "/data/loaded", "/data/checkpoint"]


def changed(folder: Path, application: Application, **changes: Any) -> tuple[Transformed, Capture]:
    run = simulated_application.run(application, STORAGE)
    source = build_capture(folder, files=FILES, ops=run.ops, spans=run.spans)
    found = transform(source, folder / "changed.capture", **changes)
    return found, open_capture(found.path)


@pytest.mark.parametrize("times", [2, 4, 8])
@pytest.mark.parametrize("depth", [0, 4])
def test_an_application_with_larger_batches(tmp_path: Path, times: int, depth: int) -> None:
    application = dataclasses.replace(BASE, depth=depth)
    larger = dataclasses.replace(
        application,
        steps=application.steps // times,
        reads_per_batch=application.reads_per_batch * times,
        compute_ns=application.compute_ns * times,
        decode_ns=application.decode_ns * times,
    )
    found, capture = changed(tmp_path, application, batch=times)
    truth_ns = simulated_application.run(larger, STORAGE).elapsed_ns - 5 * MS
    assert found.after.elapsed_ns == pytest.approx(truth_ns, rel=0.05)
    assert (found.after.operations, found.after.bytes_read) == (found.before.operations, found.before.bytes_read)
    kinds = np.array(capture.spans["kind"].to_pylist())
    assert [int((kinds == kind).sum()) for kind in ("step", "input_wait", "collective")] == [2 * larger.steps] * 3


def test_each_larger_batch_has_the_requests_of_its_batches(tmp_path: Path) -> None:
    _, capture = changed(tmp_path, dataclasses.replace(BASE, ranks=1, steps=10), batch=4)
    feeds = pa.Table.from_batches(list(capture.operations()))["feeds"].to_numpy()
    assert np.bincount(feeds.astype(int)).tolist() == [12, 12, 6]  # the last batch is smaller


def test_checkpoints_stay(tmp_path: Path) -> None:
    application = dataclasses.replace(BASE, depth=0, checkpoint_every=3)
    found, capture = changed(tmp_path, application, batch=2)
    assert found.after.operations == found.before.operations
    assert capture.spans["kind"].to_pylist().count("checkpoint") == application.steps // 3


def test_one_batch_is_what_there_is(tmp_path: Path) -> None:
    assert changed(tmp_path, BASE, batch=1)[0].same


@pytest.mark.parametrize(("times", "reason"), [(0, "--batch 0"), (81, "only 80 steps")])
def test_impossible_batches_are_refused(tmp_path: Path, times: int, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        changed(tmp_path, BASE, batch=times)
