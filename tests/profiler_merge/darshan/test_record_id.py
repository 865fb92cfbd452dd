"""`record_id` against Darshan's published values and against the ids in real logs."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.profiler_merge.darshan.log import DarshanLog, open_log
from dxt_replay.traces.files import record_id
from tests.darshan_oracle import log_id, shared_logs

OBFUSCATED = ("imbalanced-io", "nonmpi_dxt_anonymized", "noposixopens", "skew-autobench-ior")
"""Their names are numbers; the ids are those of the original paths."""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("heatmap:POSIX", 16592106915301738621),
        ("heatmap:STDIO", 3989511027826779520),
        ("<STDIN>", 14734109647742566553),
        ("<STDOUT>", 15920181672442173319),
        ("<STDERR>", 7238257241479193519),
        ("/data/train/part-00000.tfrecord", 10105891584140614878),
        ("", 10211412111675192767),
    ],
)
def test_known_values(path: str, expected: int) -> None:
    assert record_id(path) == expected
    assert record_id(path.encode()) == expected


@given(st.binary(max_size=100))
def test_is_an_unsigned_64_bit_number_of_all_the_bytes(path: bytes) -> None:
    assert 0 <= record_id(path) < 1 << 64
    assert record_id(path) != record_id(path + b"\0")


def test_odd_bytes_hash_the_same_as_text_and_as_bytes() -> None:
    assert record_id(b"/data/\xff\xfe".decode("utf-8", "surrogateescape")) == record_id(b"/data/\xff\xfe")


@pytest.mark.parametrize("path", shared_logs(), ids=log_id)
def test_names_of_real_logs_hash_to_their_ids(path: Path) -> None:
    if path.stem in OBFUSCATED:
        pytest.skip("obfuscated: the names are not the ones that were hashed")
    log = open_log(path)
    assert {key for key, name in log.names.items() if record_id(name) != key} <= _daos_ids(log)


def _daos_ids(log: DarshanLog) -> set[int]:
    """Records whose ids are not made from a path."""
    if "DAOS" not in log.modules:
        return set()
    # struct darshan_daos_object: 16 bytes of id and rank, 64 + 15 counters, 48 bytes of uuids and object id.
    data = b"".join(log.chunks("DAOS"))
    return {int.from_bytes(data[at : at + 8], "little") for at in range(0, len(data), 16 + 79 * 8 + 48)}
