"""Darshan watches a replay, and pydarshan reads what it counted: each file as often as the capture has operations.

The expected counts are added up row by row here. Opens, seeks and syncs may be more: a replay opens a file once more to
look at the page cache, places its streams, and creates what nothing opened. Darshan does not see `fstatat`.
"""

import operator
import os
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import dxt_replay
from dxt_replay.profiler_merge.recorder.darshan import find_library
from dxt_replay.replay.commands.main import main
from tests import darshan_oracle
from tests.capture_builder import Op, build_capture, read, write

LIBRARY = find_library(os.environ)
needs_darshan = pytest.mark.skipif(LIBRARY is None, reason="Darshan's runtime library is not installed")

MIB = 1 << 20
EXACT = ["READS", "WRITES", "BYTES_READ", "BYTES_WRITTEN", "MAX_BYTE_READ", "MAX_BYTE_WRITTEN", "RENAME_SOURCES"]
AT_LEAST = {"POSIX": ["OPENS", "SEEKS", "FSYNCS"], "STDIO": ["OPENS", "SEEKS", "FLUSHES"]}
NOT_OPENS = {"POSIX": ["FILENOS", "DUPS"], "STDIO": ["FDOPENS"]}
"""Counters that Darshan adds to the opens."""

Counts = dict[tuple[str, str], Counter[str]]
"""(module, path) -> counter, without the module's name -> count."""


def asked_for(capture, times=1):
    """What Darshan should count of a replay of the capture, `times` over."""
    paths, found = capture.paths(), Counts()
    for row in (row for batch in capture.operations() for row in batch.to_pylist()):
        counts = found.setdefault((row["api"], paths[row["file_id"]]), Counter())
        op, length = row["op"], row["length"]
        if op in ("read", "write"):
            way, moved = op.upper(), {"read": "READ", "write": "WRITTEN"}[op]
            counts.update({f"{way}S": times, f"BYTES_{moved}": length * times})
            counts[f"MAX_BYTE_{moved}"] = max(counts[f"MAX_BYTE_{moved}"], row["offset"] + length - 1)
        elif op == "sync":
            counts["FSYNCS" if row["api"] == "POSIX" else "FLUSHES"] += times
        elif op in ("open", "seek", "rename"):
            counts[{"open": "OPENS", "seek": "SEEKS", "rename": "RENAME_SOURCES"}[op]] += times
    return found


def counted(logs, target):
    """What Darshan counted below the twin of a target, in all of the replay's processes."""
    found, root = Counts(), f"{target}/dxt-replay-twin"
    for log, arrays in darshan_oracle.read_all(sorted(logs.rglob("*.darshan"))).items():
        assert not isinstance(arrays, str), f"pydarshan cannot read {log}: {arrays}"
        paths = dict(zip(arrays["name_ids"].tolist(), arrays["names"].tolist(), strict=True))
        for module in AT_LEAST:
            names = [name.removeprefix(f"{module}_") for name in arrays.get(f"{module} names", np.array([])).tolist()]
            for number, record in enumerate(arrays.get(f"{module} ids", ())):
                path = paths.get(int(record), "")
                # closedir is not seen: what the system's files give to its descriptor is booked to the folder.
                if path.startswith(f"{root}/") and not os.path.isdir(path):
                    counts = found.setdefault((module, path.removeprefix(root)), Counter())
                    for name, value in zip(names, arrays[f"{module} counters"][:, number].tolist(), strict=True):
                        join = max if name.startswith("MAX_BYTE") else operator.add
                        counts[name] = join(counts[name], max(int(value), 0))
    return found


def check(capture, folder, expected, *options):
    """`dxt-replay run` makes every call of every file, and reads or writes no other file of the twin."""
    pytest.importorskip("darshan", reason="pydarshan, which reads the logs, is not installed")
    assert LIBRARY is not None
    program, target = Path(sys.executable).with_name("dxt-replay"), folder / "target"
    target.mkdir()
    dxt_replay.stage(capture, target)
    run = [program, "run", capture, "--target", target, "-o", folder / "replay.capture", "--pace", "none", *options]
    record = ["record", "--library", LIBRARY.path, "-o", folder / "watched.capture", "--", *run]
    assert main([str(word) for word in record]) == 0
    found = counted(folder / "watched.recording", target)
    assert any(counts["READS"] for counts in found.values())
    wrong = []
    for place in sorted(expected.keys() | found.keys()):
        module = place[0]
        wanted, here = expected.get(place, Counter()), found.get(place, Counter())
        opens = here["OPENS"] - sum(here[name] for name in NOT_OPENS[module])
        enough = Counter({**here, "OPENS": opens, "FSYNCS": here["FSYNCS"] + here["FDSYNCS"]})
        wrong += [(*place, name, wanted, here) for name in EXACT if wanted[name] != here[name]]
        wrong += [(*place, name, wanted, here) for name in AT_LEAST[module] if wanted[name] > enough[name]]
    assert not wrong


def other(op, file_id, at_ns, **columns):
    return Op(op=op, file_id=file_id, length=0, start_ns=at_ns, end_ns=at_ns + 10, **columns)


@pytest.fixture(name="every_kind")
def every_kind_fixture(tmp_path):
    """Rank 0 reads a, writes c, syncs it and calls it d; rank 1 reads b and a stream."""
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
@pytest.mark.parametrize(("options", "times"), [((), 1), (("--repeat", "2"), 2), (("--part", "ranks=0"), 1)])
def test_each_kind_of_operation(every_kind, tmp_path, options, times):
    part = dxt_replay.part(every_kind, ranks="0") if "--part" in options else every_kind
    check(every_kind.path, tmp_path, asked_for(part, times), *options)


@needs_darshan
@pytest.mark.parametrize("name", ["imagenet", "cosmictagger"])
def test_a_recorded_job(tmp_path, name):
    sources, capture = dxt_replay.sample(name), tmp_path / "job.capture"
    dxt_replay.merge(sources.log, capture, profiles=sources.profiles)
    check(capture, tmp_path, asked_for(dxt_replay.open_capture(capture)))
