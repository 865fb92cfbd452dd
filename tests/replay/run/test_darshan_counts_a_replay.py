"""Darshan watches a replay, and pydarshan reads what it counted: each file as often as the capture has operations.

The expected counts are added up row by row here. Opens, seeks and syncs may be more: a replay opens a file once more to
look at the page cache, places its streams, and creates what nothing opened. Darshan does not see `fstatat`.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.profiler_merge.recorder.darshan import find_library
from dxt_replay.replay.commands.main import main
from dxt_replay.traces.store.reader import Capture
from tests import darshan_oracle
from tests.capture_builder import Op, build_capture, read, write

LIBRARY = find_library(os.environ)
needs_darshan = pytest.mark.skipif(LIBRARY is None, reason="Darshan's runtime library is not installed")

MIB = 1 << 20
BINS = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
BOUNDS = (100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30)
"""Largest size of each bin but the last (`DARSHAN_BUCKET_INC` in darshan-common.h)."""

EXACT = {
    "POSIX": (
        "READS",
        "WRITES",
        "RENAME_SOURCES",
        *(f"SIZE_{way}_{size}" for way in ("READ", "WRITE") for size in BINS),
    ),
    "STDIO": ("READS", "WRITES"),
}
"""Counters that are equal, without those of bytes and last bytes, which every module has."""
BYTES = ("BYTES_READ", "BYTES_WRITTEN", "MAX_BYTE_READ", "MAX_BYTE_WRITTEN")
AT_LEAST = {"POSIX": ("OPENS", "SEEKS", "FSYNCS"), "STDIO": ("OPENS", "SEEKS", "FLUSHES")}
NOT_OPENS = {"POSIX": ("FILENOS", "DUPS"), "STDIO": ("FDOPENS",)}
"""Counters that Darshan adds to the opens."""
CALLS = {"open": "OPENS", "seek": "SEEKS", "rename": "RENAME_SOURCES"}

Counts = dict[tuple[str, str], Counter[str]]
"""(module, path) -> counter, without the module's name -> count."""


def asked_for(capture: Capture, times: int = 1) -> Counts:
    """What Darshan should count of a replay of the capture, `times` over."""
    paths, found = capture.paths(), {}
    for row in (row for batch in capture.operations() for row in batch.to_pylist()):
        counts = found.setdefault((row["api"], paths[row["file_id"]]), Counter())
        op, length = row["op"], row["length"]
        if op in ("read", "write"):
            way = op.upper()
            size = BINS[sum(length > bound for bound in BOUNDS)]
            counts.update({f"{way}S": times, f"SIZE_{way}_{size}": times})
            counts[f"BYTES_{'READ' if op == 'read' else 'WRITTEN'}"] += length * times
            last = f"MAX_BYTE_{'READ' if op == 'read' else 'WRITTEN'}"
            counts[last] = max(counts[last], row["offset"] + length - 1)
        elif op == "sync":
            counts["FSYNCS" if row["api"] == "POSIX" else "FLUSHES"] += times
        elif op in CALLS:
            counts[CALLS[op]] += times
    return found


def counted(logs: Path, target: Path) -> Counts:
    """What Darshan counted below the twin of a target, in all of the replay's processes."""
    found: Counts = {}
    root = f"{target}/dxt-replay-twin"
    for log, arrays in darshan_oracle.read_all(sorted(logs.rglob("*.darshan"))).items():
        assert not isinstance(arrays, str), f"pydarshan cannot read {log}: {arrays}"
        names = dict(zip(arrays["name_ids"].tolist(), arrays["names"].tolist(), strict=True))
        for module in EXACT:
            for number, record in enumerate(arrays.get(f"{module} ids", ())):
                path = names.get(int(record), "")
                # closedir is not seen: what the system's files give to its descriptor is booked to the folder.
                if path.startswith(f"{root}/") and not os.path.isdir(path):
                    _add(found.setdefault((module, path.removeprefix(root)), Counter()), module, arrays, number)
    return found


def _add(counts: Counter[str], module: str, arrays: Mapping[str, Any], number: int) -> None:
    values = arrays[f"{module} counters"][:, number].tolist()
    for counter, value in zip(arrays[f"{module} names"].tolist(), values, strict=True):
        name = counter.removeprefix(f"{module}_")
        more = max(int(value), 0)
        counts[name] = max(counts[name], more) if name.startswith("MAX_BYTE") else counts[name] + more


def watched(capture: Path, folder: Path, *options: str) -> Counts:
    """What Darshan counts in `dxt-replay run` of a capture."""
    pytest.importorskip("darshan", reason="pydarshan, which reads the logs, is not installed")
    assert LIBRARY is not None
    program = Path(sys.executable).with_name("dxt-replay")
    target = folder / "target"
    target.mkdir(exist_ok=True)
    dxt_replay.stage(capture, target)
    run = [program, "run", capture, "--target", target, "-o", folder / "replay.capture", "--pace", "none", *options]
    record = ["record", "--library", LIBRARY.path, "-o", folder / "watched.capture", "--", *run]
    assert main([str(word) for word in record]) == 0
    return counted(folder / "watched.recording", target)


def check(expected: Counts, found: Counts) -> None:
    """Every count of every file, and no reads or writes of any other file."""
    assert any(counts["READS"] for counts in found.values())
    wrong = []
    for place in sorted(expected.keys() | found.keys()):
        module = place[0]
        wanted, here = expected.get(place, Counter()), found.get(place, Counter())
        wrong += [
            (*place, name, wanted[name], here[name]) for name in (*EXACT[module], *BYTES) if wanted[name] != here[name]
        ]
        opens = here["OPENS"] - sum(here[name] for name in NOT_OPENS[module])
        enough = Counter({**here, "OPENS": opens, "FSYNCS": here["FSYNCS"] + here["FDSYNCS"]})
        wrong += [
            (*place, name, wanted[name], enough[name]) for name in AT_LEAST[module] if wanted[name] > enough[name]
        ]
    assert not wrong


def other(op: str, file_id: int, at_ns: int, **columns: Any) -> Op:
    return Op(op=op, file_id=file_id, length=0, start_ns=at_ns, end_ns=at_ns + 10, **columns)


@pytest.fixture(name="every_kind")
def every_kind_fixture(tmp_path: Path) -> Capture:
    """Rank 0 reads a (also in several bins), writes c, syncs it and calls it d; rank 1 reads b and a stream."""
    ops = [
        other("open", 0, 0),
        read(0, offset=0, length=100, start_ns=100),
        read(0, offset=5000, length=2000, start_ns=200),
        read(0, offset=10 * MIB, length=4 * MIB, start_ns=300),
        other("stat", 0, 350),
        write(2, offset=0, length=2_000_000, start_ns=400),
        other("sync", 2, 500),
        other("rename", 2, 600, other_file_id=3),
        read(1, rank=1, offset=10, length=20, start_ns=100),
        read(4, rank=1, offset=0, length=50, start_ns=200, api="STDIO"),
        write(1, rank=1, offset=30, length=40, start_ns=300, origin="reconstructed"),
    ]
    return build_capture(tmp_path, files=("/data/a", "/data/b", "/out/c", "/out/d", "/data/stream"), ops=ops)


@needs_darshan
@pytest.mark.parametrize(("options", "times"), [((), 1), (("--repeat", "2"), 2)])
def test_each_kind_of_operation(every_kind: Capture, tmp_path: Path, options: tuple[str, ...], times: int) -> None:
    check(asked_for(every_kind, times), watched(every_kind.path, tmp_path, *options))


@needs_darshan
def test_a_part_of_a_capture(every_kind: Capture, tmp_path: Path) -> None:
    part = dxt_replay.part(every_kind, ranks="0")
    check(asked_for(part), watched(every_kind.path, tmp_path, "--part", "ranks=0"))


@needs_darshan
@pytest.mark.parametrize("name", ["imagenet", "cosmictagger"])
def test_a_recorded_job(tmp_path: Path, name: str) -> None:
    sources, capture = dxt_replay.sample(name), tmp_path / "job.capture"
    dxt_replay.merge(sources.log, capture, profiles=sources.profiles)
    check(asked_for(dxt_replay.open_capture(capture)), watched(capture, tmp_path))


def test_a_wrong_count_is_seen(every_kind: Capture) -> None:
    """The check itself: one read too few, a byte too many, a file that nobody asked for."""
    expected = asked_for(every_kind)
    check(expected, expected)
    for place, counter, more in [
        (("POSIX", "/data/a"), "READS", -1),
        (("STDIO", "/data/stream"), "BYTES_READ", 1),
        (("POSIX", "/data/stranger"), "READS", 1),
        (("POSIX", "/out/c"), "FSYNCS", -1),
    ]:
        found = {name: Counter(counts) for name, counts in expected.items()}
        found.setdefault(place, Counter())[counter] += more
        with pytest.raises(AssertionError):
            check(expected, found)
