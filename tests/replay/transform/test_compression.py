from __future__ import annotations

import numpy as np
import pytest

from dxt_replay.replay.transform.changes import Compression, parse_compression
from dxt_replay.replay.transform.rank_state import MODELLED, data_reads
from dxt_replay.replay.transform.requests import with_compression
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.schema import TRACED
from tests.replay.transform.works import COST, stream, work


def test_a_compressed_stream_has_no_gaps_and_the_share_of_the_bytes() -> None:
    before = work(stream(1_000_001, 4096))
    found, decode_ns = with_compression(
        before, np.ones(len(before["op"]), dtype=bool), Compression(name="gzip", ratio=0.6, bytes_per_s=1e9), COST
    )
    reads = data_reads(found)
    assert found["length"][reads].sum() == round(1_000_001 * 0.6)
    assert np.array_equal(found["offset"][reads][1:], (found["offset"] + found["length"])[reads][:-1])
    assert decode_ns[reads].tolist() == before["length"][reads].tolist()  # a byte in a ns
    assert found["duration_ns"][0] == 1_000 + round(0.6 * 4096)
    assert found["origin"][reads].tolist() == [MODELLED] * reads.sum()


def test_what_is_not_chosen_stays() -> None:
    before = work([(0, 0, 0, 100), (0, 1, 0, 100)])
    found, decode_ns = with_compression(
        before, before["file_id"] == 1, Compression(name="gzip", ratio=0.5, bytes_per_s=1e9), COST
    )
    assert found["length"].tolist() == [100, 50]
    assert found["origin"].tolist() == [TRACED, MODELLED]
    assert decode_ns.tolist() == [0, 100]


def test_the_option() -> None:
    assert parse_compression("gzip:0.6:250MB/s") == Compression(name="gzip", ratio=0.6, bytes_per_s=250e6)
    assert parse_compression("lzf:1").ratio == 1.0


@pytest.mark.parametrize(
    "text", ["gzip", "gzip:0", "gzip:1.5", "gzip:nan", "gzip:0.6:fast", "brotli:0.6", "gzip:0.6:-1MB/s"]
)
def test_what_is_not_a_compression_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"NAME:RATIO"):
        parse_compression(text)
