"""What is reconstructed of real runs is what their counters say: numbers, bytes, sizes, windows, places."""

from collections import Counter, defaultdict

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

from dxt_replay.profiler_merge.darshan.counters import SHARED_RANK, read_counters
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.merge import MergeOptions, merge
from dxt_replay.profiler_merge.rebuild.counted import is_application_file
from dxt_replay.traces.files import STREAM_RECORDS
from dxt_replay.traces.samples import sample
from dxt_replay.traces.schema import OPS_SCHEMA
from dxt_replay.traces.store.reader import open_capture
from tests.places import SHARED, SMALL, recordings

RECORDED, RANKS = (recordings(name) for name in ("captures/*/job.darshan", "theta/cosmictagger_8ranks.darshan"))
PUBLIC = sorted((SHARED / "darshan-logs").rglob("*.darshan"))
OF_FOLDERS = {log.parent: log for log in sorted(SMALL.rglob("*.darshan"), key=lambda log: log.stat().st_size)}
SINGLE = sorted({*OF_FOLDERS.values()} - {*RECORDED})
"""Logs of single processes, the largest of each folder: those of a job's workers are alike."""
SHOWN = ("rank", "lane", "op", "api", "origin", "file_id", "offset", "length", "start_ns", "end_ns")
BOUNDS = [100, 1 << 10, 10 << 10, 100 << 10, 1 << 20, 4 << 20, 10 << 20, 100 << 20, 1 << 30]
BINS = ("0_100", "100_1K", "1K_10K", "10K_100K", "100K_1M", "1M_4M", "4M_10M", "10M_100M", "100M_1G", "1G_PLUS")
WHOLE_FILES = ("cosmoflow", "imagenet", "frnn")
"""They open, read from the start and close, again and again."""


def merged(tmp_path, log, **options):
    """The rows of the capture, each with the record id of its file, and the capture."""
    merge([log], [], tmp_path / "c.capture", MergeOptions(align="0", force=True, **options))
    capture = open_capture(tmp_path / "c.capture")
    tables = [pa.Table.from_batches([each]).select(SHOWN) for each in capture.operations(columns=SHOWN)]
    rows = pa.concat_tables([OPS_SCHEMA.empty_table().select(SHOWN), *tables]).to_pandas()
    for name in ("op", "api", "origin"):
        rows[name] = rows[name].astype(object)
    rows["record"] = capture.files["record_id"].to_numpy()[rows["file_id"]]
    return rows, capture


def counted(log, module):
    """(rank or SHARED_RANK, record id) -> counters, at least 0, and times of the application's files."""
    table, found = read_counters(log, module), {}
    for row, (rank, record) in enumerate(zip(table.ranks.tolist(), table.record_ids.tolist(), strict=True)):
        if record not in STREAM_RECORDS and is_application_file(log.names.get(record, b"")):
            values = {name.split("_", 1)[1]: max(int(column[row]), 0) for name, column in table.counters.items()}
            stamps = {name.split("_", 1)[1]: float(column[row]) for name, column in table.fcounters.items()}
            found[rank, record] = values | stamps
    return found


def check_metadata(rows, api, counters, *, whole):
    """`whole`: names of public logs differ in `..` alone, so that of these only the sums over all files are known."""
    made, expected = Counter(), Counter()
    shared = {record for rank, record in counters if rank == SHARED_RANK}
    rebuilt = rows.loc[rows["origin"] == "reconstructed", ["rank", "record", "op"]]
    for rank, record, op in rebuilt.itertuples(index=False):
        made[(0, 0, op) if whole else (SHARED_RANK if record in shared else rank, record, op)] += 1
    for (rank, record), values in counters.items():
        place = (0, 0) if whole else (rank, record)
        opens = max(values["OPENS"] - sum(values.get(name, 0) for name in ("FILENOS", "DUPS", "FDOPENS")), 0)
        syncs = sum(values.get(name, 0) for name in ("FSYNCS", "FDSYNCS", "FLUSHES"))
        expected.update({(*place, "open"): opens, (*place, "stat"): values.get("STATS", 0), (*place, "sync"): syncs})
        if api == "STDIO":
            expected.update({(*place, "read"): values["READS"], (*place, "write"): values["WRITES"]})
        if not whole:
            assert made[(*place, "close")] <= opens
            late = values["F_CLOSE_END_TIMESTAMP"] > values["F_READ_END_TIMESTAMP"]
            assert made[(*place, "close")] == opens or not late
    assert {key: made[key] for key in expected} == expected
    assert "seek" not in {op for *_, op in made}


def check_data(rows, counters, known):
    """Of each file (`known`: by record id) and direction, over all ranks, traced and rebuilt together."""
    sizes, moved = defaultdict(Counter), Counter()
    data = rows[rows["op"].isin(["read", "write"])]
    bins = np.searchsorted(BOUNDS, data["length"])
    for record, op, length, size in zip(data["record"], data["op"], data["length"], bins, strict=True):
        sizes[record, op][BINS[size]] += 1
        moved[record, op] += length
    wanted = defaultdict(Counter)
    for (_, record), values in counters.items():
        wanted[record].update({name: value for name, value in values.items() if not name.startswith("F_")})
    for record, values in wanted.items():
        # Not: calls on a descriptor that had been a stream's.
        if record not in known or values["OPENS"] <= values["FILENOS"] + values["DUPS"]:
            continue
        for op, way, done in (("read", "READ", "READ"), ("write", "WRITE", "WRITTEN")):
            if not values[f"{way}S"]:
                continue
            found = sizes[record, op]
            assert [found.total(), moved[record, op]] == [values[f"{way}S"], values[f"BYTES_{done}"]], record
            histogram = {size: values[f"SIZE_{way}_{size}"] for size in BINS}
            # Streams and old versions count no sizes.
            assert sum(histogram.values()) != found.total() or {size: found[size] for size in BINS} == histogram


def check_windows(rows, counters):
    for row in rows[rows["origin"] == "reconstructed"].itertuples():
        window = counters.get((row.rank, row.record))
        kind = {"open": "OPEN", "close": "CLOSE", "read": "READ", "write": "WRITE"}.get(row.op)
        if window is not None and kind is not None:
            begin, end = (window.get(f"F_{kind}_{side}_TIMESTAMP", 0.0) for side in ("START", "END"))
            assert begin * 1e9 - 2 <= row.start_ns
            assert row.end_ns <= end * 1e9 + 2


def check_uses(rows, *, again):
    """A file is opened before it is used and closed after; `again`: also each time that it is read from its start."""
    uses, opens, closes, opened, passes = defaultdict(list), {}, {}, {}, 0
    for row in rows.itertuples():
        file = row.rank, row.record, row.api
        if row.op == "open":
            opens.setdefault(file, row.end_ns)
            opened[file] = row.end_ns
        elif row.op == "close":
            closes[file] = row.start_ns
            opened.pop(file, None)
        elif row.op in ("read", "write"):
            uses[file] += [row.start_ns, row.end_ns]
            if row.op == "read" and again:
                assert opened[file] <= row.start_ns
                passes += row.offset == 0
    used = uses.keys() & opens.keys()
    assert len(used) > 4
    assert all(opens[file] <= min(uses[file]) and closes.get(file, 1 << 62) >= max(uses[file]) for file in used)
    assert passes > 10 or not again


@pytest.mark.parametrize(
    "log",
    [*RECORDED, *RANKS, *PUBLIC, *SINGLE],
    ids=lambda log: log.parent.name if log.name == "job.darshan" else log.stem[-40:],
)
def test_operations_are_those_of_the_counters_in_their_windows_and_lanes(tmp_path, log):
    rows, capture = merged(tmp_path, log)
    assert log in SINGLE or not set(capture.files["offsets"].to_pylist()) & {"repaired", "suspect"}
    source, ours = open_log(log), log in (*RECORDED, *RANKS)
    for api in ("POSIX", "STDIO"):
        if api in source.modules:
            of_module, counters = rows[rows["api"] == api], counted(source, api)
            check_metadata(of_module, api, counters, whole=not ours)
            check_data(of_module, counters, set(capture.files["record_id"].to_pylist()))
            if log in RECORDED:
                check_windows(of_module, counters)
    assert (rows["end_ns"] >= rows["start_ns"]).all()
    assert rows.index.equals(rows.sort_values(["rank", "start_ns"], kind="stable").index)
    if ours:
        lanes = rows.sort_values(["rank", "lane", "start_ns"], kind="stable")
        assert (lanes["start_ns"] >= lanes.groupby(["rank", "lane"])["end_ns"].shift(fill_value=-(1 << 62))).all()
    if log in RECORDED:
        check_uses(rows, again=log.parent.name in WHOLE_FILES)


def test_without_reconstruction_only_what_was_traced_is_left(tmp_path):
    full, _ = merged(tmp_path, sample("cosmictagger").log)
    bare, _ = merged(tmp_path, sample("cosmictagger").log, reconstruct=False)
    traced = full[full["origin"] == "traced"].reset_index(drop=True)
    assert len(full) > len(traced)
    columns = ["rank", "lane", "op", "record", "offset", "length", "start_ns"]
    pd.testing.assert_frame_equal(bare[columns], traced[columns])
