"""Compressed chunks of a given stored size."""

from __future__ import annotations

import zlib

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from dxt_replay.replay.hdf5.compressed_chunks import deflate_to, largest_stored, smallest_stored
from dxt_replay.traces.errors import ReplayError
from tests.examples import examples

NOISE = np.random.default_rng(3).bytes(300_000)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[int, int]:
    """Logical and stored bytes of a chunk that can be made."""
    logical = draw(st.integers(40, 300_000))
    return logical, draw(st.integers(smallest_stored(logical), largest_stored(logical)))


@settings(max_examples=examples(200))
@given(chunks())
@example((65536, 65536))
@example((65536, largest_stored(65536)))
@example((131_075, 131_085))
@example((2048, smallest_stored(2048)))
def test_it_has_the_stored_size_and_inflates_to_the_chunk(sizes: tuple[int, int]) -> None:
    logical, stored = sizes
    made = deflate_to(NOISE, stored=stored, logical=logical)
    assert len(made) == stored
    decoder = zlib.decompressobj()
    assert len(decoder.decompress(made)) == logical
    assert decoder.eof
    assert not decoder.unused_data


def test_what_is_stored_does_not_compress_once_more() -> None:
    made = deflate_to(NOISE, stored=40_000, logical=65_536)
    assert len(zlib.compress(made)) > 39_500


@pytest.mark.parametrize("stored", [5, largest_stored(1000) + 100])
def test_an_impossible_size_is_refused(stored: int) -> None:
    with pytest.raises(ReplayError, match="exactly"):
        deflate_to(NOISE, stored=stored, logical=1000)
