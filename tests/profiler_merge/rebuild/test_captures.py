"""What is reconstructed of real runs is what their counters say: numbers, bytes, windows, places."""

from collections import Counter

import numpy as np
import pytest

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, read_counters
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.profiles.xplane import find_profiles
from dxt_replay.profiler_merge.rebuild.counted import is_application_file
from dxt_replay.traces.files import STREAM_RECORDS
from dxt_replay.traces.samples import sample
from dxt_replay.traces.store.reader import open_capture
from tests.places import SHARED, recordings

LOGS = recordings("captures/*/job.darshan")
MANY_RANKS = ("skew-autobench-ior", "sample-badost", "example")
"""2048 ranks each, which take long; their like with fewer is there too."""
PUBLIC = [log for log in sorted((SHARED / "darshan-logs").rglob("*.darshan")) if log.stem not in MANY_RANKS]
INT64_MAX = np.iinfo(np.int64).max
THETA = SHARED / "theta" / "cosmictagger_8ranks.darshan"
ALL = [*LOGS, *([THETA] if THETA.exists() else []), *PUBLIC]


def name_of(log):
    return log.parent.name if log.name == "job.darshan" else log.stem[-40:]


def merged(tmp_path, log, **options):
    """The capture, and its rows as dictionaries with the record id of each row's file."""
    profiles = find_profiles(log.parent / "profile") if log in LOGS and (log.parent / "profile").exists() else []
    merge([log], profiles, tmp_path / "c.capture", MergeOptions(**options))
    capture = open_capture(tmp_path / "c.capture")
    ids = capture.files["record_id"].to_pylist()
    rows = (row for each in capture.operations() for row in each.to_pylist())
    return capture, [{**row, "record_id": ids[row["file_id"]]} for row in rows]


def counted(log, module):
    """(rank or SHARED_RANK, record id) -> counters of the application's files."""
    table = read_counters(log, module)
    found = {}
    for row in range(len(table.ranks)) if table is not None else ():
        record = int(table.record_ids[row])
        if record not in STREAM_RECORDS and is_application_file(log.names.get(record, b"")):
            values = {name.split("_", 1)[1]: max(int(column[row]), 0) for name, column in table.counters.items()}
            stamps = {name.split("_", 1)[1]: float(column[row]) for name, column in table.fcounters.items()}
            found[int(table.ranks[row]), record] = values | stamps
    return found


@pytest.mark.parametrize("log", ALL, ids=name_of)
def test_operations_are_those_of_the_counters_in_their_windows_and_lanes(tmp_path, log):
    capture, rows = merged(tmp_path, log, align="0")
    assert not set(capture.files["offsets"].to_pylist()) & {"repaired", "suspect"}
    source = open_log(log)
    # Public logs have names that differ in `..` alone: of these, the sums over all files and ranks.
    whole = log in PUBLIC
    made, expected, windows = Counter(), Counter(), {}
    for row in rows:
        if row["origin"] == "reconstructed":
            for rank in (row["rank"], SHARED_RANK):
                place = (0, 0) if whole else (rank, row["record_id"])
                if rank != SHARED_RANK or not whole:
                    made[(row["api"], *place, row["op"])] += 1
                    made[(row["api"], *place, row["op"] + "_bytes")] += row["length"]
    for api in ("POSIX", "STDIO"):
        for (rank, record), counters in counted(source, api).items():
            windows[api, rank, record] = counters
            opens = max(counters["OPENS"] - sum(counters.get(name, 0) for name in ("FILENOS", "DUPS", "FDOPENS")), 0)
            counts = {"open": opens, "stat": counters.get("STATS", 0), "seek": 0}
            counts["sync"] = sum(counters.get(name, 0) for name in ("FSYNCS", "FDSYNCS", "FLUSHES"))
            if api == "STDIO":
                counts |= {"read": counters["READS"], "write": counters["WRITES"]}
                counts |= {"read_bytes": counters["BYTES_READ"], "write_bytes": counters["BYTES_WRITTEN"]}
            place = (0, 0) if whole else (rank, record)
            expected.update({(api, *place, name): count for name, count in counts.items()})
            if not whole:
                assert made[(api, *place, "close")] <= opens
                if counters["F_CLOSE_END_TIMESTAMP"] > counters["F_READ_END_TIMESTAMP"]:
                    assert made[(api, *place, "close")] == opens
    assert {key: made[key] for key in expected} == expected
    lanes: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for row in rows:
        assert row["end_ns"] >= row["start_ns"]
        lanes.setdefault((row["rank"], row["lane"]), []).append((row["start_ns"], row["end_ns"]))
        window = windows.get((row["api"], row["rank"], row["record_id"]))
        kind = {"open": "OPEN", "close": "CLOSE", "read": "READ", "write": "WRITE"}.get(row["op"])
        if row["origin"] == "reconstructed" and log in LOGS and window is not None and kind is not None:
            begin, end = (window.get(f"F_{kind}_{side}_TIMESTAMP", 0.0) for side in ("START", "END"))
            assert begin * 1e9 - 2 <= row["start_ns"]
            assert row["end_ns"] <= end * 1e9 + 2
    for times in lanes.values() if log not in PUBLIC else ():
        starts, ends = np.array(times).T
        assert np.all(starts[1:] >= ends[:-1])
    order = [(row["rank"], row["start_ns"]) for row in rows]
    assert order == sorted(order)


@pytest.mark.parametrize("log", LOGS, ids=name_of)
def test_a_file_is_opened_before_it_is_used_and_closed_after(tmp_path, log):
    """cosmoflow, imagenet and frnn open, read from the start and close, again and again."""
    uses, opens, closes, opened, passes = {}, {}, {}, {}, 0
    for row in merged(tmp_path, log)[1]:
        file = row["rank"], row["record_id"], row["api"]
        if row["op"] == "open":
            opens.setdefault(file, row["end_ns"])
            opened[file] = row["end_ns"]
        elif row["op"] == "close":
            closes[file] = row["start_ns"]
            opened.pop(file, None)
        elif row["op"] in ("read", "write"):
            uses.setdefault(file, []).extend((row["start_ns"], row["end_ns"]))
            if row["op"] == "read" and log.parent.name in ("cosmoflow", "imagenet", "frnn"):
                assert opened[file] <= row["start_ns"]
                passes += row["offset"] == 0
    used = uses.keys() & opens.keys()
    assert len(used) > 4
    assert all(opens[file] <= min(uses[file]) and closes.get(file, INT64_MAX) >= max(uses[file]) for file in used)
    assert passes > 10 or log.parent.name not in ("cosmoflow", "imagenet", "frnn")


def test_without_reconstruction_only_what_was_traced_is_left(tmp_path):
    files, columns = sample("cosmictagger"), ("rank", "lane", "op", "record_id", "offset", "length", "start_ns")
    _, full = merged(tmp_path, files.log)
    _, bare = merged(tmp_path, files.log, reconstruct=False, force=True)
    traced = [row for row in full if row["origin"] == "traced"]
    assert {row["op"] for row in traced} == {"read", "write"}
    assert [[row[name] for name in columns] for row in bare] == [[row[name] for name in columns] for row in traced]
    assert len(full) > len(traced)
