"""Traces in which bytes were changed, lost or repeated: what is left is read, or one error says why not."""

import json
from contextlib import suppress

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from dxt_replay.profiler_merge.tracers.dftracer import read_dftracer
from dxt_replay.profiler_merge.tracers.strace import read_strace
from dxt_replay.traces.errors import DxtReplayError
from tests.examples import examples

T = 1_795_306_000
STRACE = b"".join(
    b"%d %d.%06d %s <0.000100>\n" % (tid, T, 1000 * number, call)
    for number, (tid, call) in enumerate(
        [
            (7, b'execve("/usr/bin/python", [...], 0x7 /* 9 vars */) = 0'),
            (7, b'openat(AT_FDCWD</d>, "x", O_RDWR|O_CREAT) = 3</d/x>'),
            (7, b"clone(child_stack=NULL, flags=SIGCHLD, child_tidptr=0x7) = 8"),
            (8, b'pread64(3</d/x>, ""..., 8, 1000) = 8'),
            (8, b"lseek(3</d/x>, 5, SEEK_SET) = 5"),
            (7, b'write(3</d/x>, ""..., 6) = 6'),
            (7, b"ftruncate(3</d/x>, 4) = 0"),
            (7, b'newfstatat(3</d/x>, "", {st_mode=S_IFREG|0644, st_size=9, ...}, AT_EMPTY_PATH) = 0'),
            (7, b"copy_file_range(3</d/x>, NULL, 3</d/x>, [100], 10, 0) = 10"),
            (7, b'rename("/d/x", "/d/y") = 0'),
            (7, b"close(3</d/y>) = 0"),
        ]
    )
)
DFTRACER = b"".join(
    json.dumps({"id": 1, "cat": cat, "pid": 7, "tid": 7, "ts": T * 10**6 + at, "dur": 9, **event}).encode() + b"\n"
    for at, (cat, event) in enumerate(
        [
            ("dftracer", {"name": "FH", "ph": "M", "args": {"name": "/d/x", "value": 5}}),
            ("POSIX", {"name": "open", "ph": "X", "args": {"ret": 3, "flags": 66, "fhash": 5}}),
            ("POSIX", {"name": "write", "ph": "X", "args": {"ret": 30, "fd": 3, "fhash": 5}}),
            ("POSIX", {"name": "lseek", "ph": "X", "args": {"ret": 3, "whence": 0, "offset": 3, "fd": 3, "fhash": 5}}),
            ("POSIX", {"name": "pread", "ph": "X", "args": {"ret": 3, "offset": 9, "fd": 3, "fhash": 5}}),
            ("dataloader", {"name": "fetch", "ph": "X", "args": {}}),
            ("compute", {"name": "forward", "ph": "X", "args": {}}),
            ("STDIO", {"name": "fopen", "ph": "X", "args": {"mode": "w", "fhash": 5}}),
            ("STDIO", {"name": "fwrite", "ph": "X", "args": {"ret": 3, "size": 8, "fhash": 5}}),
        ]
    )
)


@st.composite
def damages(draw, whole):
    """`whole` with some pieces replaced by other bytes, often digits, and perhaps cut off."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        begin = draw(st.integers(0, len(data)))
        end = begin + draw(st.integers(0, 12))
        data[begin:end] = draw(
            st.one_of(st.binary(max_size=6), st.text("0123456789-.<>()\n", max_size=25).map(str.encode))
        )
    return bytes(data[: draw(st.integers(len(data) // 2, len(data)))])


@pytest.mark.parametrize(
    ("whole", "read"),
    [
        (STRACE, lambda path: read_strace([path]).of_rank(0)),
        (DFTRACER, lambda path: read_dftracer([path]).of_rank(0)),
    ],
    ids=["strace", "dftracer"],
)
@given(data=st.data())
@settings(max_examples=examples(200), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_damage_is_an_error_of_ours_or_none(tmp_path, whole, read, data):
    path = tmp_path / "a.trace"
    path.write_bytes(whole)
    read(path)
    path.write_bytes(data.draw(damages(whole)))
    with suppress(DxtReplayError):
        read(path)
