"""The expected directions of changes to recorded applications: operation counts and bytes."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from dxt_replay import merge, open_capture, transform
from dxt_replay.replay.causal.ranks import expected_elapsed_ns, steps_of
from dxt_replay.replay.plan.pacing import Pace, Pacing
from dxt_replay.replay.transform.rewrite import Transformed
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import READ, codes
from dxt_replay.traces.store.reader import Capture
from tests.places import CAPTURES
from tests.replay.transform.works import broken_rules

KIB = 1024
needs_captures = pytest.mark.skipif(not CAPTURES.is_dir(), reason="the recorded captures are not on this machine")
pytestmark = needs_captures


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("captures")


def captured(folder: Path, name: str) -> Capture:
    """A recorded application, merged once."""
    output = folder / f"{name}.capture"
    if not output.exists():
        source = CAPTURES / name
        merge(
            source / "job.darshan" if (source / "job.darshan").exists() else source / "logs",
            output,
            profiles=source / "profile",
        )
    return open_capture(output)


def changed(folder: Path, name: str, **changes: Any) -> tuple[Transformed, Capture]:
    captured(folder, name)
    output = folder / "changed.capture"
    found = transform(folder / f"{name}.capture", output, force=True, **changes)
    return found, open_capture(output)


def lengths(capture: Capture, suffix: str) -> Counter[int]:
    """How often reads of the files with this suffix have each length."""
    mine = np.array([path.endswith(suffix) for path in capture.paths()])
    found: Counter[int] = Counter()
    for batch in capture.operations(columns=["op", "file_id", "length"]):
        reads = (codes(batch, "op") == READ) & mine[batch.column("file_id").to_numpy()]
        found.update(batch.column("length").to_numpy()[reads].tolist())
    return found


@pytest.mark.parametrize("size", [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384])
def test_imagenet_with_another_transfer_size(folder: Path, size: int) -> None:
    """A file of 3,148,176 bytes needs ceil(Z / t) requests and the one that meets its end."""
    found, capture = changed(folder, "imagenet", transfer_size=size * KIB)
    whole = 3_148_176
    before = lengths(captured(folder, "imagenet"), ".tfrecord")
    visits = before[0]
    assert found.after.bytes_read == found.before.bytes_read
    after = lengths(capture, ".tfrecord")
    assert after[0] == visits
    at_least, at_most = (-(-whole // (size * KIB)) * passes for passes in (visits, visits + 12))
    assert at_least <= sum(after.values()) - visits <= at_most  # some passes end before the file does
    assert found.same == (size == 256)


@pytest.mark.parametrize(
    ("chunk", "requests", "length"), [(1, 40, 1024), (4, 10, 4096), (8, 5, 8192), (64, 1, 40960), (1024, 1, 40960)]
)
def test_cosmictagger_with_other_chunks(folder: Path, chunk: int, requests: int, length: int) -> None:
    """20 chunks of 2 KiB make a sample: requests fall as 1 / chunk, until one holds the sample."""
    found, capture = changed(folder, "cosmictagger", chunk=chunk * KIB)
    assert found.after.bytes_read == found.before.bytes_read
    assert lengths(capture, ".h5")[length] == pytest.approx(2 * 150 * 8 * requests, rel=0.01)


def test_ffn_with_larger_chunks_in_random_order_reads_more(folder: Path) -> None:
    found, _ = changed(folder, "ffn", chunk="128KiB")
    assert found.after.operations == found.before.operations
    assert found.after.bytes_read == pytest.approx(2 * found.before.bytes_read, rel=0.05)


def test_candle_with_larger_requests(folder: Path) -> None:
    found, capture = changed(folder, "candle", transfer_size="1MiB")
    assert found.after.bytes_read == found.before.bytes_read
    assert lengths(capture, ".csv")[1 << 20] == 2 * (9 + 2)
    assert found.after.elapsed_ns < found.before.elapsed_ns


def test_candle_has_nothing_that_readers_could_read_ahead(folder: Path) -> None:
    with pytest.raises(UsageError, match="HDF5"):
        changed(folder, "candle", chunk="1MiB")


@pytest.mark.parametrize("readers", [1, 3, 4, 8])
def test_torch_images_with_other_workers(folder: Path, readers: int) -> None:
    found, capture = changed(folder, "torch_images", readers=readers)
    assert (found.after.operations, found.after.bytes_read) == (found.before.operations, found.before.bytes_read)
    table = pa.Table.from_batches(list(capture.operations(columns=["lane", "feeds"]))).drop_null()
    lane, feeds = table["lane"].to_numpy(), table["feeds"].to_numpy()
    assert len(np.unique(lane)) == readers
    assert len(np.unique(np.stack((lane, feeds % readers)), axis=1).T) == readers


def test_fewer_readers_and_no_read_ahead_never_help(folder: Path) -> None:
    elapsed = [changed(folder, "torch_images", readers=readers)[0].after.elapsed_ns for readers in (0, 1, 4)]
    assert elapsed[0] > elapsed[1] >= elapsed[2]
    elapsed = [changed(folder, "torch_shards", readers=2, prefetch=n)[0].after.elapsed_ns for n in (2, 8)]
    assert elapsed[0] >= elapsed[1]


def test_compression_moves_fewer_bytes_and_takes_time_to_decode(folder: Path) -> None:
    slow, _ = changed(folder, "cosmictagger", compression="gzip:0.6:50MB/s")
    fast, _ = changed(folder, "cosmictagger", compression="gzip:0.6:100000MB/s")
    assert slow.after.bytes_read == fast.after.bytes_read == pytest.approx(0.6 * slow.before.bytes_read, rel=0.01)
    assert slow.after.elapsed_ns > slow.before.elapsed_ns
    assert fast.after.elapsed_ns <= fast.before.elapsed_ns


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
def test_a_replay_by_steps_would_take_the_predicted_time(folder: Path, name: str, changes: dict[str, Any]) -> None:
    """The times of the result are those that its own dependencies lead to."""
    found, capture = changed(folder, name, **changes)
    assert expected_elapsed_ns(capture, steps_of(capture)) == pytest.approx(found.after.elapsed_ns, rel=0.001)
    assert capture.info.dependencies == "known"
    assert not broken_rules(capture)


@pytest.mark.parametrize("name", ["imagenet", "torch_eval"])
@pytest.mark.parametrize("changes", [{"prefetch": 1}, {"readers": 1}, {"compute_speed": 4}, {"ranks": 3}], ids=str)
def test_a_copied_rank_changes_as_the_rank_that_it_copies(folder: Path, name: str, changes: dict[str, Any]) -> None:
    """A copy has the dependencies of its source. Ranks that do the same take as long as one, whatever changes in each;
    with another number of ranks the work of the copies counts."""
    copied = folder / f"copied {name}.capture"
    captured(folder, name)
    transform(folder / f"{name}.capture", copied, force=True, ranks=6, weak=True)
    found = transform(copied, folder / "more.capture", force=True, **changes)
    assert not broken_rules(open_capture(found.path))
    assert found.after.bytes_read == found.before.bytes_read
    if "ranks" not in changes:
        assert found.after.elapsed_ns == changed(folder, name, **changes)[0].after.elapsed_ns


@pytest.mark.parametrize("name", ["imagenet", "cosmoflow", "cosmoflow_threads"])
@pytest.mark.parametrize("speed", [2, 8])
def test_another_accelerator_is_predicted_as_by_the_causal_model_of_the_source(
    folder: Path, name: str, speed: float
) -> None:
    found, _ = changed(folder, name, compute_speed=speed)
    source = captured(folder, name)
    by_model = expected_elapsed_ns(source, steps_of(source), Pacing(pace=Pace.STEPS, compute_speed=speed))
    assert found.after.elapsed_ns == pytest.approx(by_model, rel=0.005)
