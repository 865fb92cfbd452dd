from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.transform import spill_file as module
from dxt_replay.replay.transform.spill_file import SpillFile
from dxt_replay.traces.errors import TargetError


def columns(rows: int, seed: int) -> dict[str, np.ndarray]:
    random = np.random.default_rng(seed)
    return {
        "lane": random.integers(0, 9, rows).astype(np.int32),
        "op": random.integers(0, 9, rows).astype(np.int8),
        "offset": random.integers(-(1 << 62), 1 << 62, rows),
        "held": random.integers(0, 2, rows).astype(bool),
        "key": random.random(rows),
    }


@given(sizes=st.lists(st.integers(0, 40), min_size=1, max_size=6), chunk=st.integers(1, 50), data=st.data())
def test_what_is_taken_is_what_was_put(
    sizes: list[int], chunk: int, data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    with pytest.MonkeyPatch.context() as patch, SpillFile(tmp_path_factory.mktemp("spill")) as spill:
        patch.setattr(module, "CHUNK_ROWS", chunk)
        given_in = [columns(rows, seed) for seed, rows in enumerate(sizes)]
        kept = [spill.put(each) for each in given_in]
        for number in data.draw(st.permutations(range(len(sizes)))):
            first = data.draw(st.integers(0, sizes[number]))
            until = data.draw(st.integers(first, sizes[number]))
            for rows, found in (
                (slice(None), spill.take(kept[number])),
                (slice(first, until), spill.take(kept[number], first, until)),
            ):
                for name, values in given_in[number].items():
                    assert found[name].dtype == values.dtype
                    np.testing.assert_array_equal(found[name], values[rows])


def test_the_file_has_no_name(tmp_path: Path) -> None:
    with SpillFile(tmp_path) as spill:
        spill.put(columns(10, 0))
        assert not list(tmp_path.iterdir())


def test_a_full_disk_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(28, "No space left on device")

    with SpillFile(tmp_path) as spill:
        monkeypatch.setattr(os, "pwrite", full)
        with pytest.raises(TargetError, match=r"No space left on device; free space there"):
            spill.put(columns(10, 0))


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match="cannot keep the operations"):
        SpillFile(tmp_path / "absent")
