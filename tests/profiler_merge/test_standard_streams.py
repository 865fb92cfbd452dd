"""Standard input, output and error are no storage: a wait for a pipe, or many lines of text, cost the job no I/O."""

from dxt_replay.profiler_merge.analysis.findings import findings
from dxt_replay.profiler_merge.analysis.summary import summarise
from dxt_replay.profiler_merge.merge import merge
from dxt_replay.traces.store.reader import open_capture
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, posix_rows, write_dxt_log

JOB = JobSpec(nprocs=1, start_s=1000, start_ns=0, end_s=1005, end_ns=0)


def merged(tmp_path, prints=200_000):
    """A job that waits 4 s for its input, prints line by line, and reads one file."""
    piped = DxtRecord(record_id=1, reads=[(0, 300_000, 0.5, 4.5)])
    printed = DxtRecord(record_id=2, writes=[(8 * i, 8, 4.5 + i * 1e-6, 4.5 + (i + 1) * 1e-6) for i in range(prints)])
    data = DxtRecord(record_id=3, reads=[(0, 1000, 4.8, 4.81)])
    stdio = [{"record_id": 2, "STDIO_WRITES": 7, "STDIO_BYTES_WRITTEN": 70}]
    log = write_dxt_log(
        tmp_path / "job.darshan",
        [piped, printed, data],
        names={1: b"<STDIN>", 2: b"<STDOUT>", 3: b"/data/part"},
        job=JOB,
        extra_modules={
            "POSIX": ModuleSpec(version=4, streams=[encode_counters("POSIX", posix_rows([piped, printed, data]), 4)]),
            "STDIO": ModuleSpec(version=2, streams=[encode_counters("STDIO", stdio, 2)]),
        },
    )
    made = merge([log], [], tmp_path / "c.capture")
    return made, open_capture(tmp_path / "c.capture")


def test_they_are_in_no_row_no_total_and_no_finding(tmp_path):
    made, capture = merged(tmp_path)
    assert capture.paths() == ["/data/part"]
    assert made.operations == 1
    assert capture.info.coverage.bytes == 1.0
    assert made.counted["POSIX"]["reads"] == 1
    assert "STDIO" not in made.counted or not made.counted["STDIO"]["writes"]
    assert summarise(capture).bytes.read == 1000
    assert not [each for each in findings(capture) if each.severity == "high"]


def test_what_they_moved_is_said_where_it_is_much(tmp_path):
    made, _ = merged(tmp_path)
    (said,) = (text for text in made.info.warnings if "standard input" in text)
    assert "200,008 operations on standard input, output and error (1.81 MiB)" in said


def test_a_few_lines_of_output_are_not_worth_a_warning(tmp_path):
    made, _ = merged(tmp_path, prints=3)
    assert not any("standard input" in text for text in made.info.warnings)
