"""Changes of recorded applications: what the rows of a result lead to, and requests that arithmetic knows."""

from __future__ import annotations

import numpy as np
import pytest

from dxt_replay import merge, open_capture, transform
from dxt_replay.replay.causal.ranks import expected_elapsed_ns, steps_of
from dxt_replay.traces.schema import READ, codes
from tests.places import CAPTURES
from tests.replay.transform.works import broken_rules

KIB = 1024
pytestmark = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the recorded captures are not on this machine")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("captures")


def changed(folder, name, **changes):
    """A recorded application, merged once, with these changes."""
    capture = folder / f"{name}.capture"
    if not capture.exists():
        source = CAPTURES / name
        log = source / "job.darshan"
        merge(log if log.exists() else source / "logs", capture, profiles=source / "profile")
    found = transform(capture, folder / "changed.capture", force=True, **changes)
    return found, open_capture(found.path)


def lengths(capture, suffix):
    """The lengths of the reads of the files with this suffix."""
    mine, found = np.array([path.endswith(suffix) for path in capture.paths()]), list[int]()
    for batch in capture.operations(columns=["op", "file_id", "length"]):
        reads = (codes(batch, "op") == READ) & mine[batch.column("file_id").to_numpy()]
        found += batch.column("length").to_numpy()[reads].tolist()
    return found


@pytest.mark.parametrize("size", [64, 256, 4096])
def test_imagenet_with_another_transfer_size(folder, size):
    """A file of 3,148,176 bytes needs ceil(Z / t) requests and the one that meets its end."""
    found, capture = changed(folder, "imagenet", transfer_size=size * KIB)
    after = lengths(capture, ".tfrecord")
    visits, each = after.count(0), -(-3_148_176 // (size * KIB))
    assert visits > 0
    assert each * visits <= len(after) - visits <= each * (visits + 12)  # some passes end before the file does
    assert found.same == (size == 256)


@pytest.mark.parametrize(("chunk", "requests", "length"), [(1, 40, 1024), (8, 5, 8192), (64, 1, 40960)])
def test_cosmictagger_with_other_chunks(folder, chunk, requests, length):
    """20 chunks of 2 KiB make a sample: requests fall as 1 / chunk, until one holds the sample."""
    _, capture = changed(folder, "cosmictagger", chunk=chunk * KIB)
    assert lengths(capture, ".h5").count(length) == pytest.approx(2 * 150 * 8 * requests, rel=0.01)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("imagenet", {"transfer_size": "1MiB"}),
        ("imagenet", {"readers": 8, "prefetch": 4}),
        ("imagenet", {"ranks": 8}),
        ("cosmictagger", {"chunk": "1MiB", "compression": "gzip:0.6", "readers": 4}),
        ("cosmoflow_threads", {"readers": 2, "compute_speed": 4}),
        ("torch_images", {"readers": 4}),
        ("torch_hdf5", {"readers": 2, "ranks": 4}),
        ("frnn", {"readers": 0, "compute_speed": 2}),
    ],
)
def test_a_replay_by_steps_would_take_the_predicted_time(folder, name, changes):
    """The times of the result are those that its own dependencies lead to."""
    found, capture = changed(folder, name, **changes)
    assert expected_elapsed_ns(capture, steps_of(capture)) == pytest.approx(found.after.elapsed_ns, rel=0.001)
    assert capture.info.dependencies == "known"
    assert not broken_rules(capture)


@pytest.mark.parametrize("name", ["imagenet", "torch_eval"])
@pytest.mark.parametrize("changes", [{"prefetch": 1}, {"readers": 1}, {"ranks": 3}], ids=str)
def test_a_copied_rank_changes_as_the_rank_that_it_copies(folder, name, changes):
    """A copy has the dependencies of its source. Ranks that do the same take as long as one, whatever changes in each;
    with another number of ranks the work of the copies counts."""
    one, _ = changed(folder, name, **changes)
    copied = transform(folder / f"{name}.capture", folder / "copied.capture", force=True, ranks=6, weak=True).path
    found = transform(copied, folder / "more.capture", force=True, **changes)
    assert not broken_rules(open_capture(found.path))
    assert found.after.bytes_read == found.before.bytes_read
    if "ranks" not in changes:
        assert found.after.elapsed_ns == one.after.elapsed_ns
