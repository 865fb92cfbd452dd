from __future__ import annotations

import os
from pathlib import Path

import pytest

from benchmarks.slowed_storage import CannotThrottleError, delayed
from dxt_replay.replay.calibration.host import read_ahead_setting
from dxt_replay.replay.calibration.read_ahead import ReadAhead, measure_read_ahead
from dxt_replay.replay.calibration.scratch import write_data
from dxt_replay.replay.target import page_cache
from dxt_replay.traces.units import MIB


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    path = str(tmp_path / "data").encode()
    assert write_data(path, 40 * MIB, 60) == 40 * MIB
    return path


def test_a_file_that_is_still_in_the_cache_says_nothing(data: bytes) -> None:
    assert measure_read_ahead(data, 40 * MIB, 60) == ReadAhead()


def test_the_window_is_what_the_kernel_says(data: bytes) -> None:
    """On a file system on a disk of its own, where the kernel says how far it reads ahead."""
    if page_cache.drop([data]).kept or page_cache.resident([data]).resident_bytes:
        pytest.skip("pages cannot be dropped here")
    most = read_ahead_setting(Path(data.decode()).stat().st_dev)
    if most is None:
        pytest.skip("the kernel does not say how far it reads ahead here")
    seen = measure_read_ahead(data, 40 * MIB, 60)
    found = seen.bytes
    assert found is not None
    assert not seen.dropped_at_open
    assert (found > 0) == (most > 0)
    assert found <= most


@pytest.mark.skipif(os.geteuid() != 0 or not os.path.exists("/dev/fuse"), reason="needs root and /dev/fuse")
@pytest.mark.parametrize("pages", ["kept", "dropped"])
def test_pages_that_an_open_drops_are_seen(data: bytes, pages: str) -> None:
    """Through FUSE; "dropped" is libfuse's default. Its window is 128 KiB, however slow the file system is."""
    try:
        with delayed(Path(os.fsdecode(data)).parent, 6000, pages=pages) as mount:
            path = os.fsencode(mount / "data")
            page_cache.drop([path])
            found = measure_read_ahead(path, 40 * MIB, 60)
    except CannotThrottleError as error:
        pytest.skip(str(error))
    assert found == ReadAhead(bytes=128 << 10, dropped_at_open=pages == "dropped")
