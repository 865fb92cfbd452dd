from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dxt_replay.replay.sharing.anonymous_names import AnonymousNames
from dxt_replay.replay.sharing.public_words import EXTENSIONS, ROLES, TOP_LEVEL

HASHED = "[0-9a-f]{16}"
NAMES = AnonymousNames(b"key")
KEPT = {word.encode() for word in TOP_LEVEL | ROLES} | {b"", b".", b".."}


@pytest.mark.parametrize(
    ("path", "pattern"),
    [
        (b"/home/ann/data/a.h5", f"/home/{HASHED}/{HASHED}/{HASHED}.h5"),
        (b"/ann/home/x", f"/{HASHED}/{HASHED}/{HASHED}"),
        (b"relative/train/x.Tar.GZ", f"{HASHED}/train/{HASHED}.Tar.GZ"),
        (b"/a//b/../c/", f"/{HASHED}//{HASHED}/../{HASHED}/"),
        (b"s3://bucket/ann/", f"s3://{HASHED}/{HASHED}/"),
        (b"/a/.json", f"/{HASHED}/{HASHED}"),
        (b"/a/x.ann", f"/{HASHED}/{HASHED}"),
        (b"/a/model.data-00000-of-00001", f"/{HASHED}/{HASHED}"),
        (b"/a/host.xplane.pb", f"/{HASHED}/{HASHED}.xplane.pb"),
        (b"/a/dxt-anchor.host.17.bin", f"/{HASHED}/dxt-anchor.{HASHED}.bin"),
        (b"<STDERR>", "<STDERR>"),
        (b"<record 4711>", f"<{HASHED}>"),
        (b"/", "/"),
        (b"", ""),
    ],
)
def test_paths(path: bytes, pattern: str) -> None:
    assert re.fullmatch(pattern, NAMES.path(path))


@given(st.lists(st.binary(max_size=8).filter(lambda part: b"/" not in part), max_size=5))
def test_no_part_stays_and_equal_parts_stay_equal(parts: list[bytes]) -> None:
    path = b"/" + b"/".join(parts)
    named = NAMES.path(path).encode().split(b"/")
    before = path.split(b"/")
    assert len(named) == len(before)
    for part, name in zip(before[2:], named[2:], strict=True):
        stem = name.split(b".")[0]
        assert part in KEPT or re.fullmatch(HASHED.encode(), stem) or part.startswith(b"dxt-anchor.")
        assert all(ending.decode().lower() in EXTENSIONS for ending in name.split(b".")[1:]) or part in KEPT
    for one, first in zip(before[2:], named[2:], strict=True):
        for other, second in zip(before[2:], named[2:], strict=True):
            assert (one == other) == (first == second)


def test_another_key_gives_other_names() -> None:
    other = AnonymousNames(b"another key")
    assert NAMES.path(b"/x") != other.path(b"/x")
    assert NAMES.record_id(7) != other.record_id(7)
    assert NAMES.checksum("ab") != other.checksum("ab")
    assert len(NAMES.checksum("ab")) == 64


@pytest.mark.parametrize(
    "name",
    [
        "",
        "next_batch",
        "ProfilerStep#12",
        "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__",
        "MapAndBatchProduce",
        "IteratorGetNextOp::DoCompute",
        "nccl:all_reduce",
    ],
)
def test_names_that_frameworks_give_stay(name: str) -> None:
    assert NAMES.span(name) == name


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("train ann's net", HASHED),
        ("ProfilerStep#ann", HASHED),
        ("nccl:ann", HASHED),
        ("validate ann", f"valid{HASHED}"),
        ("Optimizer.step#AnnSGD.step", f"Optimizer.step#{HASHED}"),
        ("jit_ann_step", f"jit_{HASHED}"),
    ],
)
def test_names_of_the_application_are_replaced(name: str, pattern: str) -> None:
    assert re.fullmatch(pattern, NAMES.span(name))
