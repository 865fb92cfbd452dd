"""What a store refused, and what broke off on the way."""

from __future__ import annotations

import pytest

from dxt_replay.profiler_merge.tracers.requests.request_rows import LoggedRequest, RequestRows, is_refused


@pytest.mark.parametrize(
    ("name", "status", "received", "length", "refused"),
    [
        ("GetObject", 206, 700, 700, False),
        ("GetObject", None, 700, 700, False),
        ("GetObject", 0, 700, 700, False),  # it broke off after 700 bytes, which the job did receive
        ("GetObject", 0, 0, 0, True),
        ("GetObject", 403, 250, 0, True),  # the bytes of the error's own text are no data
        ("HeadObject", 404, 0, 0, False),
    ],
)
def test_a_read_that_broke_off_keeps_its_bytes(
    name: str, status: int | None, received: int, length: int, refused: bool
) -> None:
    rows = RequestRows()
    rows.add(
        LoggedRequest(
            process=1,
            thread=1,
            name=name,
            path="s3://bucket/key",
            start_ns=10,
            end_ns=20,
            offset=0,
            length=received,
            received=received,
            status=status,
        )
    )
    found = rows.rows()
    assert found["length"].tolist() == [length]
    assert is_refused(found).tolist() == [refused]
