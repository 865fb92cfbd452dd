"""A folder of captures that command lines name."""

import pytest

import dxt_replay
from tests.capture_builder import Span, build_capture, read, write


@pytest.fixture(scope="package")
def folder(tmp_path_factory):
    """Captures, their twins, replays, and files that are none of these. Tests add to it, and change nothing in it."""
    at = tmp_path_factory.mktemp("folder")
    ops = [read(0, length=4096, start_ns=10_000), read(1, length=100, start_ns=60_000, rank=1)]
    ops.append(write(0, length=10, start_ns=1_000_000))
    spans = [Span("step", 0, 2_000_000, step=0, rank=rank) for rank in (0, 1)]
    source = build_capture(at, name="source", files=["/data/a", "/data/b"], ops=ops, spans=spans)
    build_capture(at, name="bare", files=["/data/a"], ops=ops[:1])
    for name in ("twin", "empty", "exists.capture"):
        (at / name).mkdir()
    dxt_replay.stage(source, at / "twin")
    for name in ("replay", "again"):
        dxt_replay.run(source, at / "twin", at / f"{name}.capture")
    contents = {"damaged.darshan": b"damaged" * 30, "text.txt": b"hello", "record.json": b"{}", "key": b""}
    for name, content in {**contents, "exists.capture/x": b"x"}.items():
        (at / name).write_bytes(content)
    return at
