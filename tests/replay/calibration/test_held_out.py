"""A model against reads that it was not fitted to."""

from __future__ import annotations

import numpy as np

from dxt_replay.replay.calibration.estimates import Measured
from dxt_replay.replay.calibration.model_fit import model_error, with_largest_fetch
from dxt_replay.replay.simulation.model import PageCache, RequestTime, StorageModel

KIB = 1 << 10
WINDOW = 128 * KIB


def measured(state: str, size: int, time_ms: float, requests: int = 60) -> Measured:
    return Measured.of("read", state, size, 1, [np.full(requests, time_ms * 1e6)])


FUSE = [
    measured("cold", 4 * KIB, 8.2),
    measured("cold", WINDOW, 8.2),
    measured("cold", 256 * KIB, 16.5),
    measured("cold", 1024 * KIB, 41.9),
]
"""As measured through libfuse with a delay of 8 ms: 1 MiB is read in five turns of windows of 128 KiB (Linux 6.18)."""


def model(*cold: Measured) -> StorageModel:
    times = RequestTime(sizes=tuple(each.size for each in cold), time_ns=(tuple(each.time_ns.value for each in cold),))
    cache = PageCache(size=1 << 30, hit=RequestTime.affine(2000, 5e9), read_ahead=WINDOW)
    return StorageModel(name="x", operations={"read": times}, cache=cache)


def test_large_reads_that_wait_for_their_parts_are_cut() -> None:
    found = with_largest_fetch(model(*FUSE), FUSE)
    assert found.cache is not None
    assert found.cache.largest_fetch == WINDOW


def test_large_reads_whose_parts_are_in_flight_together_are_not_cut() -> None:
    disk = [measured("cold", 4 * KIB, 0.1), measured("cold", WINDOW, 0.2), measured("cold", 1024 * KIB, 0.22)]
    assert with_largest_fetch(model(*disk), disk) == model(*disk)


def test_sequential_reads_show_the_error_of_the_model() -> None:
    fitted = with_largest_fetch(model(*FUSE), FUSE)
    assert model_error(fitted, [*FUSE, measured("sequential", 64 * KIB, 2.2)]) < 0.1
    assert model_error(fitted, [*FUSE, measured("sequential", 64 * KIB, 8.2)]) > 2, "as if nothing were read ahead"
    assert model_error(fitted, FUSE) == 0.0
