"""The time in I/O by Darshan's counters, against what its own library makes of the same records; and which processes
read more than their logs explain."""

import json
import subprocess
import sys

import numpy as np
import pytest

from dxt_replay.profiler_merge.counted_totals import counted_times, past_trace
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.process_accounts import Account, not_accounted
from dxt_replay.traces.samples import sample
from tests.darshan_oracle import COUNTER_MODULES, read_all
from tests.darshan_writer import JobSpec, ModuleSpec, encode_counters, write_log
from tests.places import SHARED

PUBLIC = SHARED / "darshan-logs"
MODULES = {"POSIX": "POSIX", "STDIO": "STDIO", "MPI-IO": "MPIIO", "DFS": "DFS", "DAOS": "DAOS"}
PUBLIC_NAMES = (
    "sample-badost", "imbalanced-io", "mpi-io-test-x86_64-3.4.4", "ior_hdf5_example", "noposixopens", "*ior-DFS*",
)  # fmt: skip
LOGS = [sample("imagenet").log, *(path for name in PUBLIC_NAMES for path in PUBLIC.glob(f"{name}.darshan"))]

# In a process of its own: a report that is collected while cffi parses waits for cffi's lock for ever.
DARSHANS = """
import json, sys, warnings
import darshan
from darshan.backend.cffi_backend import accumulate_records
warnings.simplefilter("ignore")
for log in sys.argv[1:]:
    report, found = darshan.DarshanReport(log, read_all=True), {}
    for module in ("POSIX", "STDIO", "MPI-IO", "DFS", "DAOS"):
        if module in report.records:
            records = report.records[module].to_df()
            made = accumulate_records(records, module, report.metadata["job"]["nprocs"]).derived_metrics
            found[module] = [made.agg_time_by_slowest, made.total_bytes, made.agg_perf_by_slowest]
    print(json.dumps(found))
"""


def test_the_times_are_darshans():
    command = [sys.executable, "-c", DARSHANS, *map(str, LOGS)]
    printed = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    for log, text in zip(LOGS, printed, strict=True):
        found = counted_times([(open_log(log), None)])
        darshans = {MODULES[module]: values for module, values in json.loads(text).items()}
        assert found.keys() & darshans.keys()
        for interface in found.keys() & darshans.keys():
            mine, (slowest_s, moved, mib_s) = found[interface], darshans[interface]
            assert mine["slowest_s"] == pytest.approx(slowest_s, rel=1e-9), log
            assert mine["bytes_read"] + mine["bytes_written"] == moved
            if mine["slowest_s"]:
                assert moved / mine["slowest_s"] / (1 << 20) == pytest.approx(mib_s, rel=1e-9)


OF_H5D = {
    "reads": "H5D_READS", "writes": "H5D_WRITES", "bytes_read": "H5D_BYTES_READ", "bytes_written": "H5D_BYTES_WRITTEN",
    "read_s": "H5D_F_READ_TIME", "write_s": "H5D_F_WRITE_TIME", "metadata_s": "H5F_F_META_TIME H5D_F_META_TIME",
}  # fmt: skip
OF_DFS = {
    "reads": "DFS_READS DFS_READXS", "writes": "DFS_WRITES DFS_WRITEXS", "bytes_read": "DFS_BYTES_READ",
    "metadata_s": "DFS_F_META_TIME",
}  # fmt: skip
OF_DAOS = {
    "reads": "DAOS_OBJ_FETCHES DAOS_ARRAY_READS DAOS_KV_GETS", "write_s": "DAOS_F_WRITE_TIME",
    "writes": "DAOS_OBJ_UPDATES DAOS_ARRAY_WRITES DAOS_KV_PUTS", "bytes_written": "DAOS_BYTES_WRITTEN",
}  # fmt: skip
OF_PNETCDF = {
    "reads": "PNETCDF_VAR_INDEP_READS PNETCDF_VAR_COLL_READS PNETCDF_VAR_NB_READS",
    "writes": "PNETCDF_VAR_INDEP_WRITES PNETCDF_VAR_COLL_WRITES PNETCDF_VAR_NB_WRITES",
    "bytes_read": "PNETCDF_VAR_BYTES_READ", "bytes_written": "PNETCDF_VAR_BYTES_WRITTEN",
    "read_s": "PNETCDF_VAR_F_READ_TIME", "write_s": "PNETCDF_VAR_F_WRITE_TIME",
    "metadata_s": "PNETCDF_FILE_F_META_TIME PNETCDF_VAR_F_META_TIME", "wait_s": "PNETCDF_FILE_F_WAIT_TIME",
}  # fmt: skip


def check_sums(*cases):
    """The figures of (log, interface) are sums of these counters over the records that pydarshan reads."""
    read = read_all(sorted({log for log, _, _ in cases}))
    for log, interface, expected in cases:
        theirs, sums = read[log], {}
        assert not isinstance(theirs, str), theirs
        for key in theirs:
            module, _, kind = key.partition(" ")
            if kind in ("counters", "fcounters") and module in COUNTER_MODULES:
                names = theirs[f"{module} {kind[: -len('counters')]}names"].tolist()
                sums |= zip(names, np.maximum(theirs[key], 0).sum(axis=1).tolist(), strict=True)
        found = counted_times([(open_log(log), None)])[interface]
        for name, counters in expected.items():
            assert found[name] == pytest.approx(sum(sums[each] for each in counters.split()), rel=1e-12), (log, name)
            assert found[name]


@pytest.mark.skipif(not PUBLIC.exists(), reason="the public logs are not here")
def test_the_figures_of_public_logs_are_pydarshans():
    check_sums(
        *((*PUBLIC.glob(f"{name}.darshan"), interface, expected) for name, interface, expected in (
            ("*ior-DFS*", "DFS", OF_DFS), ("*ior-DFS*", "DAOS", OF_DAOS), ("*ior-HDF5*", "HDF5", OF_H5D),
            ("ior_hdf5_example", "HDF5", OF_H5D), ("hdf5_file_opens_only", "HDF5", {"metadata_s": "H5F_F_META_TIME"}),
        ))
    )  # fmt: skip


def test_what_pnetcdf_counts_and_what_it_does_not(tmp_path):
    of_file = {"OPENS": 2, "BYTES_READ": 700, "BYTES_WRITTEN": 900, "F_META_TIME": 0.5, "F_WAIT_TIME": 2.0}
    of_var = {f"{kind}_{way}S": 1 for kind in ("INDEP", "COLL", "NB") for way in ("READ", "WRITE")}
    of_var |= {"BYTES_READ": 600, "BYTES_WRITTEN": 800, "F_READ_TIME": 3.0, "F_WRITE_TIME": 4.0, "F_META_TIME": 0.25}
    of_var |= {"F_SLOWEST_RANK_TIME": 5.0, "SLOWEST_RANK": 1}

    def written(**modules):
        specs = {}
        for module, (version, counters) in modules.items():
            row = {"record_id": 7, "rank": -1, **{f"{module}_{name}": value for name, value in counters.items()}}
            specs[module] = ModuleSpec(version=version, streams=[encode_counters(module, [row], version)])
        return write_log(tmp_path / "a.darshan", job=JobSpec(nprocs=2), names={7: b"/a"}, modules=specs)

    log = written(PNETCDF_FILE=(3, of_file), PNETCDF_VAR=(1, of_var))  # variables have the bytes and the file its time
    check_sums((log, "PNETCDF", OF_PNETCDF))
    found = counted_times([(open_log(log), None)])["PNETCDF"]
    assert (found["slowest_s"], found["slowest_rank"]) == (None, None)  # the shared file's time is not told by rank
    found = counted_times([(open_log(written(PNETCDF_FILE=(3, of_file))), None)])["PNETCDF"]
    assert (found["reads"], found["read_s"], found["bytes_read"], found["metadata_s"]) == (None, None, 700, 0.5)
    old = written(PNETCDF_FILE=(2, {"INDEP_OPENS": 2, "COLL_OPENS": 2}))
    assert counted_times([(open_log(old), None)]) == {}


@pytest.mark.parametrize(("posix_bytes", "left"), [(0, 1010), (10, 1000), (2000, None), (1_000_000, ())])
def test_an_object_store_is_past_the_trace_once(posix_bytes, left):
    store = {name: {"bytes_read": 600, "bytes_written": moved} for name, moved in (("DFS", 400), ("DAOS", 410))}
    found = past_trace(store, posix_bytes=posix_bytes)
    assert [(each.kind, each.name, each.bytes) for each in found] == ([] if left == () else [("objects", "DAOS", left)])
    assert past_trace({}, posix_bytes=5) == ()


def test_files_are_left_out_and_the_rank_of_a_process_counts():
    log = open_log(sample("imagenet").log)
    assert counted_times([(log, None)], list(log.names)) == {}
    found, alone = (counted_times([(log, rank) for rank in ranks])["POSIX"] for ranks in ((5, 7), (5,)))
    assert found["slowest_s"] == alone["slowest_s"]
    assert alone["slowest_rank"] == 5
    assert np.isclose(found["read_s"], 2 * alone["read_s"])


# Which processes read more than their logs explain, on made-up accounts.

MIB = 1 << 20


def of(*pids, read=MIB, **more):
    return [Account(pid=pid, program="python", ranks=1, read=read, written=0, **more) for pid in pids]


def pipe(start_ns):
    """Two processes, of which the first ends at 5 ns."""
    return [of(1, start_ns=1, end_ns=5)[0], of(2, start_ns=start_ns, end_ns=9)[0]]


PYTHON = {"python": [1, 2]}
PROGRAMS = {"python": [1], "cat": [2, 3], "static": [4]}
FED = {"sh": [1], "dd": [2]}


@pytest.mark.parametrize(
    ("accounts", "began", "read", "more", "found"),
    [
        (of(1, 2, read=100 * MIB), PYTHON, 200, {}, []),
        # Processes without a log may have read little.
        (of(1, read=100 * MIB), PROGRAMS, 100.5, {}, []),
        (of(1, read=100 * MIB), PROGRAMS, 102, {}, ["cat (2 processes)", "static"]),
        # What was read past a log.
        (of(1), {"python": [1]}, 5, {}, ["processes with a log"]),
        # Bytes on pipes and sockets are taken off where all processes have logs.
        (of(1, 2), PYTHON, 12, {"written": 6 * MIB, "received": 4 * MIB}, []),
        (of(1), PYTHON, 12, {"written": 6 * MIB, "received": 5 * MIB}, ["python"]),
        # A pipe has two ends.
        (pipe(4), {"dd": [1, 2]}, 12, {"written": 12 * MIB}, []),
        (pipe(6), {"dd": [1, 2]}, 12, {"written": 12 * MIB}, ["processes with a log"]),
        # Input from a file is seen although as much was written.
        (of(1, 2), FED, 12, {"written": 12 * MIB, "fed": {"dd": 10 * MIB}}, ["dd"]),
        (of(1, 2), FED, 12, {"written": 12 * MIB, "fed": {"dd": 100}}, []),
        # What a Python imports may be unknown.
        (of(1, read=0, imports=True), {"python": [1]}, 30, {}, []),
        (of(1, read=0), {"python": [1]}, 30, {}, ["processes with a log"]),
        # A log that does not name its process is that of any of its program.
        (of(1, None, read=2 * MIB), PYTHON, 4, {}, []),
        (of(1, None, read=2 * MIB), {"python": [1, 2, 3]}, 8, {}, ["python"]),
        (of(1, None, read=2 * MIB), {"python": [1], "cat": [2]}, 8, {}, ["cat"]),
        # Logs of other machines explain more than was read here.
        (of(1, 2, read=100 * MIB), {"python": [1]}, 100, {}, []),
    ],
)
def test_processes_that_read_more_than_is_known(accounts, began, read, more, found):
    facts = {"written": 0, "received": 0, "fed": {}} | more
    assert not_accounted(accounts, began=began, read=int(read * MIB), **facts) == found
