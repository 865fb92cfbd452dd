"""A storage model from measurements: what simulate will read."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.replay.calibration.estimates import Measured
from dxt_replay.replay.calibration.model_fit import fit_model
from dxt_replay.replay.simulation.model import Limit, StorageModel, document_of, read_storage_model
from tests.replay.simulation.storage_cases import time_ns

THROTTLE = Limit(name="throttle", each="server", operations=("read",), per_s=1e6, burst=1000)


def measured(call: str, state: str, size: int, in_flight: int, time_us: float) -> Measured:
    times = np.linspace(0.5, 1.5, 101) * time_us * 1000
    return Measured.of(call, state, size, in_flight, [times, 1.1 * times, 0.9 * times])


def reads() -> list[Measured]:
    return [
        measured("read", "cached", 4096, 1, 2),
        measured("read", "cached", 4096, 8, 9),
        measured("read", "cold", 4096, 1, 100),
        measured("read", "cold", 1 << 20, 1, 1000),
        measured("read", "cold", 4096, 8, 200),
        measured("read", "cold", 1 << 20, 8, 6000),
        measured("read", "cold", 4096, 64, 1200),
    ]


def fitted(more: list[Measured], *, limits: tuple[Limit, ...] = (), drops_pages: bool = True) -> StorageModel:
    return fit_model(
        "a disk",
        "measured",
        [*reads(), *more],
        limits,
        read_ahead=131_072,
        cache_bytes=1 << 30,
        dirty_bytes=1 << 28,
        drops_pages=drops_pages,
    )


def test_cold_reads_become_a_table_by_size_and_requests_in_flight() -> None:
    read = fitted([]).operations["read"]
    assert (read.in_flight, read.sizes) == ((1, 8, 64), (4096, 1 << 20))
    assert time_ns(read, 4096, 1) == pytest.approx(100_000)
    assert time_ns(read, 1 << 20, 8) == pytest.approx(6_000_000)
    # Not measured: the large read grows as it did with fewer in flight.
    assert time_ns(read, 1 << 20, 64) == pytest.approx(1_200_000 * 30)


def test_the_cache_has_what_was_measured() -> None:
    cache = fitted([]).cache
    assert cache is not None
    assert (cache.size, cache.read_ahead, cache.dirty) == (1 << 30, 131_072, 0)
    assert time_ns(cache.hit, 4096) == pytest.approx(2000)


def test_where_pages_cannot_be_dropped_there_is_no_cache_beside_the_storage() -> None:
    assert fitted([], drops_pages=False).cache is None


def test_behind_a_throttle_only_single_reads_count() -> None:
    model = fitted([], limits=(THROTTLE,))
    assert model.limits == (THROTTLE,)
    assert model.operations["read"].in_flight == (1,)


def test_where_a_cached_read_is_as_slow_as_a_cold_one_nothing_is_cached() -> None:
    slow = [measured("read", "cached", size, 1, time) for size, time in ((4096, 95), (1 << 20, 980))]
    reads_alone = [each for each in reads() if each.state == "cold"]
    model = fit_model("x", "", [*reads_alone, *slow], (), read_ahead=0, cache_bytes=1, dirty_bytes=1, drops_pages=True)
    assert model.cache is None


def test_figures_that_were_disturbed_widen_the_uncertainty() -> None:
    model = fit_model(
        "x", "", reads(), (), read_ahead=0, cache_bytes=1, dirty_bytes=1, drops_pages=True, least_uncertainty=0.25
    )
    assert model.uncertainty == 0.25


SMALL, LARGE = 4096, 1 << 20


def test_writes_that_end_in_the_cache_are_paid_by_the_sync() -> None:
    model = fitted(
        [
            measured("write", "", SMALL, 1, 3),
            measured("write", "", LARGE, 1, 200),
            measured("write", "synced", SMALL, 1, 4),
            measured("write", "synced", LARGE, 1, 250),
            measured("sync", "", SMALL, 1, 500),
            measured("sync", "", LARGE, 1, 2500),
        ]
    )
    assert model.cache is not None
    assert model.cache.dirty == 1 << 28
    assert model.cache.write is not None
    assert time_ns(model.cache.write, LARGE) == pytest.approx(200_000)
    assert time_ns(model.operations["sync"], 0) == pytest.approx(500_000)
    assert time_ns(model.operations["write"], LARGE) == pytest.approx(2_000_000)


def test_writes_that_wait_for_the_storage_are_as_measured() -> None:
    model = fitted(
        [
            measured("write", "", SMALL, 1, 5000),
            measured("write", "", LARGE, 1, 9000),
            measured("write", "synced", SMALL, 1, 5000),
            measured("write", "synced", LARGE, 1, 9000),
            measured("sync", "", SMALL, 1, 5000),
            measured("sync", "", LARGE, 1, 5100),
        ]
    )
    assert model.cache is not None
    assert (model.cache.dirty, model.cache.write) == (0, None)
    assert time_ns(model.operations["write"], LARGE) == pytest.approx(9_000_000)
    assert time_ns(model.operations["sync"], 0) == pytest.approx(5_000_000)


def test_how_single_reads_vary_is_the_jitter_and_how_trials_vary_the_uncertainty() -> None:
    model = fitted([])
    assert model.jitter is not None
    assert np.mean(model.jitter.quantiles) == pytest.approx(1.0, abs=0.001)
    assert model.jitter.quantiles[0] == pytest.approx(0.5, abs=0.02)
    assert model.uncertainty == pytest.approx(0.1, rel=0.01)


def test_the_model_survives_its_file(tmp_path: Path) -> None:
    model = fitted([measured("open", "", 0, 1, 8)], limits=(THROTTLE,))
    file = tmp_path / "model.json"
    file.write_text(json.dumps(document_of(model) | {"measured": {"anything": 1}}))
    assert read_storage_model(file) == model
