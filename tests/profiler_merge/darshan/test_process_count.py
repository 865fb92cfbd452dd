"""The number of processes in the job record against the ranks and operations that the log counted."""

import pytest

from dxt_replay.profiler_merge.darshan.jobs import process_count
from dxt_replay.profiler_merge.darshan.log import open_log
from dxt_replay.profiler_merge.darshan.regions import DamagedLogError
from dxt_replay.profiler_merge.merge import merge
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, write_dxt_log, write_log
from tests.places import SHARED

LOGS = [*sorted((SHARED / "darshan-logs").glob("*.darshan")), *sorted((SHARED / "captures").glob("*/job.darshan"))]


def counted(path, nprocs, rows):
    """A log that says `nprocs` and holds these POSIX records."""
    posix = ModuleSpec(version=4, streams=[encode_counters("POSIX", rows, 4)])
    return write_log(path, names={1: b"/a", 2: b"/b"}, modules={"POSIX": posix}, job=JobSpec(nprocs=nprocs))


SHARED_BY_FOUR = [
    {"record_id": 1, "rank": -1, "POSIX_OPENS": 4, "POSIX_READS": 40, "POSIX_SLOWEST_RANK": 3},
    {"record_id": 2, "rank": 2, "POSIX_OPENS": 1},
]


def test_a_count_that_fits_the_records_is_taken(tmp_path):
    assert process_count(open_log(counted(tmp_path / "a.darshan", 4, SHARED_BY_FOUR))) == 4


def test_a_flipped_bit_is_refused_by_a_file_that_all_ranks_used(tmp_path):
    path = counted(tmp_path / "a.darshan", 4 | 1 << 19, SHARED_BY_FOUR)
    with pytest.raises(DamagedLogError, match=r"says 524292 processes, but POSIX counts 44 operations on /a"):
        process_count(open_log(path))


def test_a_rank_that_the_job_does_not_have_is_refused(tmp_path):
    with pytest.raises(DamagedLogError, match="says 2 processes, but POSIX has a record of rank 2"):
        process_count(open_log(counted(tmp_path / "a.darshan", 2, SHARED_BY_FOUR)))


def test_traced_operations_of_a_rank_that_the_job_does_not_have(tmp_path):
    record = DxtRecord(record_id=1, rank=5, reads=[(0, 10, 0.1, 0.2)])
    path = write_dxt_log(tmp_path / "a.darshan", [record], names={1: b"/a"}, job=JobSpec(nprocs=6))
    assert merge([path], [], tmp_path / "a.capture").operations == 1
    posix = ModuleSpec(version=4, streams=[encode_counters("POSIX", [{"record_id": 1, "rank": 0}], 4)])
    write_dxt_log(path, [record], names={1: b"/a"}, job=JobSpec(nprocs=4), extra_modules={"POSIX": posix})
    made = merge([path], [], tmp_path / "b.capture")
    assert made.operations == 0
    assert any("impossible rank 5 (/a) (missing: 1 segment)" in warning for warning in made.info.warnings)


@pytest.mark.parametrize("path", LOGS or [None], ids=lambda path: path and f"{path.parent.name}-{path.stem[:40]}")
def test_no_real_log_contradicts_itself(path):
    if path is None:
        pytest.skip("the public logs are not beside the checkout")
    log = open_log(path)
    assert process_count(log) == log.job.nprocs
