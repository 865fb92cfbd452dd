from __future__ import annotations

from pathlib import Path

import pytest

from replay.calibration.read_ahead import measure_read_ahead
from replay.calibration.scratch import write_data
from replay.twin import page_cache
from traces.units import MIB


@pytest.fixture
def data(tmp_path: Path) -> bytes:
    path = str(tmp_path / "data").encode()
    assert write_data(path, 40 * MIB, 60) == 40 * MIB
    return path


def test_a_file_that_is_still_in_the_cache_says_nothing(data: bytes) -> None:
    assert measure_read_ahead(data, 40 * MIB, 60) is None


def test_the_window_is_what_the_kernel_says(data: bytes) -> None:
    """On a file system on a disk of its own, where the kernel says how far it reads ahead."""
    if page_cache.drop([data]).kept or page_cache.resident([data]).resident_bytes:
        pytest.skip("pages cannot be dropped here")
    device = Path(data.decode()).stat().st_dev
    setting = Path(f"/sys/class/bdi/{device >> 8 & 0xFFF}:{device & 0xFF}/read_ahead_kb")
    if not setting.exists():
        pytest.skip("the kernel does not say how far it reads ahead here")
    most = int(setting.read_text()) << 10
    found = measure_read_ahead(data, 40 * MIB, 60)
    assert found is not None
    assert (found > 0) == (most > 0)
    assert found <= 2 * most
