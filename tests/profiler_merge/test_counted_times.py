"""The time in I/O by the counters, against what Darshan's own library makes of the same records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from dxt_replay.profiler_merge.counted_times import counted_times
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.traces.samples import sample
from tests.places import SHARED

_LOGS = SHARED / "darshan-logs"
_MODULES = {"POSIX": "POSIX", "STDIO": "STDIO", "MPI-IO": "MPIIO"}

# In a process of its own: a report that is collected while cffi parses waits for cffi's lock for ever.
_DARSHANS = """
import json, sys, warnings
import darshan
from darshan.backend.cffi_backend import accumulate_records
warnings.simplefilter("ignore")
report, found = darshan.DarshanReport(sys.argv[1], read_all=True), {}
for module in ("POSIX", "STDIO", "MPI-IO"):
    if module in report.records:
        records = report.records[module].to_df()
        made = accumulate_records(records, module, report.metadata["job"]["nprocs"]).derived_metrics
        found[module] = [made.agg_time_by_slowest, made.total_bytes, made.agg_perf_by_slowest]
print(json.dumps(found))
"""


def check(path: Path) -> None:
    found = counted_times([(open_log(path), None)])
    done = subprocess.run([sys.executable, "-c", _DARSHANS, str(path)], capture_output=True, text=True, check=True)
    darshans = {_MODULES[module]: values for module, values in json.loads(done.stdout).items()}
    both = found.keys() & darshans.keys()
    assert both
    for name in both:
        mine, (slowest_s, moved, mib_s) = found[name], darshans[name]
        assert mine["slowest_s"] == pytest.approx(slowest_s, rel=1e-9)
        assert mine["bytes"] == moved
        if mine["slowest_s"]:
            assert mine["bytes"] / mine["slowest_s"] / (1 << 20) == pytest.approx(mib_s, rel=1e-9)


def test_the_times_are_darshans() -> None:
    check(sample("imagenet").log)


@pytest.mark.skipif(not _LOGS.exists(), reason="the public logs are not here")
@pytest.mark.parametrize(
    "name",
    ["sample-badost", "imbalanced-io", "mpi-io-test-x86_64-3.4.4", "ior_hdf5_example", "noposixopens"],
)
def test_the_times_of_public_logs_are_darshans(name: str) -> None:
    check(_LOGS / f"{name}.darshan")


def test_what_is_left_out_is_in_no_sum() -> None:
    log = open_log(sample("imagenet").log)
    assert counted_times([(log, None)], list(log.names)) == {}


def test_the_rank_of_a_process_counts() -> None:
    log = open_log(sample("imagenet").log)
    found = counted_times([(log, 5), (log, 7)])["POSIX"]
    alone = counted_times([(log, 5)])["POSIX"]
    assert found["slowest_s"] == alone["slowest_s"]
    assert alone["slowest_rank"] == 5
    assert np.isclose(found["read_s"], 2 * alone["read_s"])
