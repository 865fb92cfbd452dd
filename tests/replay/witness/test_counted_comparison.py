"""What Darshan counted in a replay, file by file: each count that is not as the capture asks for is named."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import pytest

import dxt_replay
from dxt_replay.replay.commands.main import main
from dxt_replay.replay.show.counted_sections import counted_sections
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.store.reader import Capture
from tests.capture_builder import File, Op, build_capture, read, write
from tests.darshan_writer import DxtRecord, JobSpec, ModuleSpec, encode_counters, write_dxt_log, write_log
from tests.schemas import check, schema

FILES = ("/data/a", "/data/b", "/out/c", "/out/d", "/data/stream")
TARGET = "/mnt/target"
TWIN = f"{TARGET}/dxt-replay-twin"
POSIX, STDIO = ("POSIX", 4), ("STDIO", 2)


def other(op: str, file_id: int, at_ns: int, **columns: Any) -> Op:
    return Op(op=op, file_id=file_id, length=0, start_ns=at_ns, end_ns=at_ns + 10, **columns)


def operations() -> list[Op]:
    """Rank 0 reads a (100 B, 2000 B), writes c, syncs it and calls it d; rank 1 reads b and a stream."""
    return [
        other("open", 0, 0),
        read(0, offset=0, length=100, start_ns=100),
        read(0, offset=5000, length=2000, start_ns=200),
        other("stat", 0, 300),
        write(2, offset=0, length=2_000_000, start_ns=400),
        other("sync", 2, 500),
        other("rename", 2, 600, other_file_id=3),
        read(1, rank=1, offset=10, length=20, start_ns=100),
        read(4, rank=1, offset=0, length=50, start_ns=200, api="STDIO"),
    ]


def counters() -> dict[str, dict[str, int]]:
    """What Darshan counts of such a replay: one open more of each file that is read, by a descriptor that is copied."""
    return {
        "data/a": {
            "POSIX_OPENS": 3,
            "POSIX_DUPS": 1,
            "POSIX_READS": 2,
            "POSIX_BYTES_READ": 2100,
            "POSIX_MAX_BYTE_READ": 6999,
            "POSIX_SIZE_READ_0_100": 1,
            "POSIX_SIZE_READ_1K_10K": 1,
        },
        "data/b": {
            "POSIX_OPENS": 1,
            "POSIX_READS": 1,
            "POSIX_BYTES_READ": 20,
            "POSIX_MAX_BYTE_READ": 29,
            "POSIX_SIZE_READ_0_100": 1,
        },
        "out/c": {
            "POSIX_OPENS": 1,
            "POSIX_WRITES": 1,
            "POSIX_BYTES_WRITTEN": 2_000_000,
            "POSIX_MAX_BYTE_WRITTEN": 1_999_999,
            "POSIX_SIZE_WRITE_1M_4M": 1,
            "POSIX_FSYNCS": 1,
            "POSIX_RENAME_SOURCES": 1,
        },
        "data/stream": {"STDIO_OPENS": 1, "STDIO_READS": 1, "STDIO_BYTES_READ": 50, "STDIO_MAX_BYTE_READ": 49},
    }


def replay_log(
    path: Path,
    counted: Mapping[str, Mapping[str, int]],
    *,
    exe: bytes = b"python work.py",
    root: str = TWIN,
    partial: Collection[str] = (),
) -> Path:
    """A log of a replay; names are those of files below `root`, or whole paths."""
    names, rows = {}, {"POSIX": [], "STDIO": []}
    for record, (name, values) in enumerate(counted.items(), start=1):
        names[record] = (name if name.startswith("/") else f"{root}/{name}").encode()
        for module, found in rows.items():
            own = {counter: value for counter, value in values.items() if counter.startswith(module)}
            if own:
                found.append({"record_id": record, **own})
    modules = {
        module: ModuleSpec(version=version, streams=[encode_counters(module, rows[module], version)])
        for module, version in (POSIX, STDIO)
        if rows[module]
    }
    return write_log(path, names=names, modules=modules, job=JobSpec(nprocs=1, exe=exe), partial=partial)


@pytest.fixture(name="source")
def source_fixture(tmp_path: Path) -> Capture:
    return build_capture(tmp_path, files=FILES, ops=operations(), name="source")


def test_a_replay_that_did_what_the_capture_asks_for_is_exact(source: Capture, tmp_path: Path) -> None:
    log = replay_log(tmp_path / "replay.darshan", counters())
    found = dxt_replay.compare_log(source, log)
    assert (found.verdict, found.passed, found.differing, found.differences) == ("exact", True, 0, ())
    assert (found.files, found.equal_files) == (4, 4)
    assert found.counted["reads"] == found.expected["reads"] == 4
    assert found.added == {"opens": 4, "seeks": 0, "syncs": 0}, "looks at the page cache, and files that nothing opened"
    assert found.not_seen == {"stats": 1}
    assert "4 reads" not in found.headline
    assert found.headline.startswith("Darshan counted what the capture asks for: 5 reads and writes of 1.91 MiB")


@pytest.mark.parametrize(
    ("name", "counter", "what"),
    [
        ("data/a", "POSIX_READS", "reads"),
        ("data/a", "POSIX_BYTES_READ", "bytes_read"),
        ("data/a", "POSIX_MAX_BYTE_READ", "last_byte_read"),
        ("data/a", "POSIX_SIZE_READ_1K_10K", "size_read_1K_10K"),
        ("data/a", "POSIX_SIZE_READ_1G_PLUS", "size_read_1G_PLUS"),
        ("data/b", "POSIX_WRITES", "writes"),
        ("out/c", "POSIX_BYTES_WRITTEN", "bytes_written"),
        ("out/c", "POSIX_MAX_BYTE_WRITTEN", "last_byte_written"),
        ("out/c", "POSIX_FDSYNCS", "syncs"),
        ("out/c", "POSIX_RENAME_SOURCES", "renames"),
        ("data/stream", "STDIO_READS", "reads"),
        ("data/stream", "STDIO_FLUSHES", "syncs"),
        ("data/stream", "STDIO_MAX_BYTE_READ", "last_byte_read"),
    ],
)
def test_each_count_that_differs_is_named(source: Capture, tmp_path: Path, name: str, counter: str, what: str) -> None:
    counted = counters()
    counted[name][counter] = counted[name].get(counter, 0) + 1
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "replay.darshan", counted))
    (one,) = found.differences
    assert (found.passed, found.verdict, found.equal_files) == (False, "differs", 3)
    assert (one.path, one.interface, one.what) == (f"/{name}", counter.split("_")[0], what)
    assert one.counted == one.expected + 1
    assert f"/{name} has" in found.headline


def test_opens_and_seeks_may_be_more_but_not_fewer(source: Capture, tmp_path: Path) -> None:
    counted = counters()
    counted["data/a"] |= {"POSIX_OPENS": 9, "POSIX_FILENOS": 2, "POSIX_SEEKS": 7, "POSIX_STATS": 5}
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "more.darshan", counted))
    assert (found.passed, found.added) == (True, {"opens": 8, "seeks": 7, "syncs": 0})
    counted["data/a"] |= {"POSIX_OPENS": 1, "POSIX_DUPS": 1, "POSIX_FILENOS": 0}
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "fewer.darshan", counted))
    assert [(each.what, each.expected, each.counted) for each in found.differences] == [("opens", 1, 0)]


def test_seeks_that_only_counters_hold_are_not_asked_for(tmp_path: Path) -> None:
    """The application made 7 on /data/a, of which 2 were traced: a replay makes these 2."""
    files = [File("/data/a", counters={"posix_seeks": 7, "posix_reads": 1})]
    ops = [read(0, length=10), other("seek", 0, 100), other("seek", 0, 200)]
    source = build_capture(tmp_path, files=files, ops=ops)
    counted = {"POSIX_OPENS": 2, "POSIX_READS": 1, "POSIX_BYTES_READ": 10, "POSIX_MAX_BYTE_READ": 9}
    counted |= {"POSIX_SIZE_READ_0_100": 1, "POSIX_SEEKS": 2}
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "replay.darshan", {"data/a": counted}))
    assert (found.verdict, found.added["seeks"]) == ("exact", 0)
    assert (found.recorded["seeks"], found.expected["seeks"], found.counted["seeks"]) == (7, 2, 2)
    totals, text = (section for section in counted_sections(found) if section.title.startswith(("Counts", "What")))
    assert ("seeks", "7", "2", "2") in totals.rows
    assert "5 seeks of the application were counted, not traced" in " ".join(line for (line,) in text.rows)
    lost = {"data/a": counted | {"POSIX_SEEKS": 1}}
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "lost.darshan", lost))
    assert [(each.what, each.expected, each.counted) for each in found.differences] == [("seeks", 2, 1)]


def test_a_file_that_was_left_out_differs(source: Capture, tmp_path: Path) -> None:
    counted = counters()
    del counted["data/b"]
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "replay.darshan", counted))
    assert not found.passed
    assert {each.path for each in found.differences} == {"/data/b"}


def test_the_logs_of_all_processes_are_added_up(source: Capture, tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    counted = counters()
    half = {name: values for name, values in counted.items() if name.startswith("data")}
    replay_log(tmp_path / "logs" / "one.darshan", half)
    replay_log(tmp_path / "logs" / "other.darshan", {"out/c": counted["out/c"]})
    found = dxt_replay.compare_log(source, tmp_path / "logs")
    assert (found.passed, found.logs, found.files) == (True, 2, 4)


def test_a_twin_beside_another_one_is_recognised(source: Capture, tmp_path: Path) -> None:
    log = replay_log(tmp_path / "replay.darshan", counters(), root=f"{TWIN}-0123456789abcdef")
    assert dxt_replay.compare_log(source, log).passed


def test_what_the_replay_does_besides_is_listed_apart(source: Capture, tmp_path: Path) -> None:
    """Python's modules, the folders of the twin, the replay's own capture; a stranger in the twin is a difference."""
    counted = counters() | {
        "/usr/lib/python3/os.py": {"POSIX_OPENS": 1, "POSIX_READS": 1, "POSIX_BYTES_READ": 1000},
        "/home/me/replay.capture/ops/part.parquet": {"POSIX_WRITES": 1, "POSIX_BYTES_WRITTEN": 500},
        "data": {"POSIX_OPENS": 1},
    }
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "replay.darshan", counted))
    assert found.passed
    assert (found.besides.files, found.besides.bytes_read, found.besides.bytes_written) == (2, 1000, 500)
    counted["data/stranger"] = {"POSIX_READS": 1, "POSIX_BYTES_READ": 1}
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "stranger.darshan", counted))
    assert (found.passed, found.strangers) == (False, (f"{TWIN}/data/stranger",))


@pytest.mark.parametrize(
    ("options", "changes"),
    [
        ("--ranks 0", {"data/b": None, "data/stream": None}),
        ("--ranks=1", {"data/a": None, "out/c": None}),
        ("--repeat 2", "twice"),
        ("--until 150ns", {"out/c": None, "data/stream": None}),
        ("--direct", {"data/a": {**counters()["data/a"], "POSIX_BYTES_READ": 4608, "POSIX_MAX_BYTE_READ": 7679}}),
        ("--cold", {"data/b": {**counters()["data/b"], "POSIX_FSYNCS": 1}}),
        (
            "--api posix",
            {
                "data/stream": {
                    "POSIX_READS": 1,
                    "POSIX_BYTES_READ": 50,
                    "POSIX_MAX_BYTE_READ": 49,
                    "POSIX_SIZE_READ_0_100": 1,
                }
            },
        ),
    ],
)
def test_the_command_line_in_the_log_says_what_was_replayed(
    source: Capture, tmp_path: Path, options: str, changes: Any
) -> None:
    counted: dict[str, dict[str, int]] = counters()
    if changes == "twice":
        for values in counted.values():
            values.update({name: 2 * value for name, value in values.items() if "MAX_BYTE" not in name})
    else:
        counted = {name: changes.get(name, values) for name, values in counted.items()}
        counted = {name: values for name, values in counted.items() if values is not None}
    if "until" in options:
        counted["data/a"] = {
            "POSIX_OPENS": 1,
            "POSIX_READS": 1,
            "POSIX_BYTES_READ": 100,
            "POSIX_MAX_BYTE_READ": 99,
            "POSIX_SIZE_READ_0_100": 1,
        }
    plain = dxt_replay.compare_log(source, replay_log(tmp_path / "plain.darshan", counted))
    assert not plain.passed
    exe = f"/usr/bin/python3 /opt/bin/dxt-replay run source.capture --target {TARGET} {options} -o x.capture".encode()
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "replay.darshan", counted, exe=exe))
    assert found.passed, found.differences


def test_a_darshan_that_ran_out_of_memory_is_not_proof_of_a_difference(source: Capture, tmp_path: Path) -> None:
    counted = counters()
    del counted["data/b"]
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "replay.darshan", counted, partial=["POSIX"]))
    assert (found.verdict, found.passed) == ("incomplete", False)
    assert "DARSHAN_MODMEM" in found.headline


def test_files_that_only_mpi_io_uses_are_not_compared_where_darshan_does_not_see_it(tmp_path: Path) -> None:
    ops = [read(0, length=10, start_ns=100), read(1, length=10, start_ns=200, api="MPIIO")]
    source = build_capture(tmp_path, files=FILES, ops=ops, name="source")
    one = {"POSIX_OPENS": 1, "POSIX_READS": 1, "POSIX_BYTES_READ": 10, "POSIX_MAX_BYTE_READ": 9}
    counted = {"data/a": one | {"POSIX_SIZE_READ_0_100": 1}, "data/b": {"POSIX_READS": 7}}
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "replay.darshan", counted))
    assert (found.passed, found.files, found.unjudged) == (True, 1, ("/data/b",))
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "only.darshan", {"data/b": {"POSIX_READS": 7}}))
    assert not found.passed
    only = build_capture(tmp_path, files=FILES, ops=ops[1:], name="only")
    found = dxt_replay.compare_log(only, tmp_path / "only.darshan")
    assert (found.passed, found.files) == (False, 0)
    assert found.headline.startswith("FAILED: nothing was compared")


def test_real_data_are_found_where_they_were_read(source: Capture, tmp_path: Path) -> None:
    counted = {
        f"/real/{name.removeprefix('data/')}" if name.startswith("data/") else name: values
        for name, values in counters().items()
    }
    assert not dxt_replay.compare_log(source, replay_log(tmp_path / "plain.darshan", counted)).passed
    assert dxt_replay.compare_log(source, tmp_path / "plain.darshan", maps=("/data=/real",)).passed
    log = replay_log(tmp_path / "said.darshan", counted, exe=b"python dxt-replay run s --map /data=/real")
    assert dxt_replay.compare_log(source, log).passed


def test_the_end_of_a_file_through_mpi_io_counts_as_many_bytes_as_were_asked_for(tmp_path: Path) -> None:
    ops = [read(k, length=length, start_ns=100 + k, api="MPIIO") for k, length in enumerate((10, 0))]
    source = build_capture(tmp_path, files=FILES, ops=ops, name="source")

    def log(size: int) -> Path:
        rows = [
            {"record_id": 1, "MPIIO_INDEP_READS": 1, "MPIIO_BYTES_READ": size, "MPIIO_SIZE_READ_AGG_0_100": 1},
            {"record_id": 2, "MPIIO_INDEP_READS": 1, "MPIIO_BYTES_READ": 4096, "MPIIO_SIZE_READ_AGG_1K_10K": 1},
        ]
        names = {1: f"{TWIN}/data/a".encode(), 2: f"{TWIN}/data/b".encode()}
        modules = {"MPI-IO": ModuleSpec(version=3, streams=[encode_counters("MPI-IO", rows, 3)])}
        return write_log(tmp_path / "replay.darshan", names=names, modules=modules)

    assert dxt_replay.compare_log(source, log(10)).passed
    (one,) = dxt_replay.compare_log(source, log(11)).differences
    assert (one.path, one.interface, one.what) == ("/data/a", "MPI-IO", "bytes_read")


def test_the_command_compares_the_log_of_a_replay(
    source: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    log = replay_log(tmp_path / "replay.darshan", counters())
    argv = ["compare", str(source.path), str(log)]
    assert main([*argv, "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed.pop("schema_version") == 1
    assert printed == json.loads(json.dumps(dxt_replay.compare_log(source, log).as_json()))
    assert main(argv) == 0
    assert "1 stat: the replay calls fstatat" in capsys.readouterr().out
    counted = counters()
    counted["data/b"]["POSIX_READS"] = 3
    replay_log(log, counted)
    assert main(argv) == 1
    text = " ".join(capsys.readouterr().out.split())
    assert text.startswith("FAILED: Darshan counted something else in 1 of 4 files: /data/b has 3 reads at POSIX")
    assert main([*argv, "--floor", str(source.path), str(source.path)]) == 2
    assert "--floor needs the capture of the replay" in capsys.readouterr().err


def test_a_log_of_another_replay_or_program_is_refused(
    source: Capture, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    strange = replay_log(tmp_path / "strange.darshan", {"x/y": {"POSIX_READS": 1, "POSIX_BYTES_READ": 1}})
    assert main(["compare", str(source.path), str(strange)]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "counted none of the files of" in line
    recorded = write_dxt_log(
        tmp_path / "job.darshan", [DxtRecord(record_id=1, reads=[(0, 10, 0.1, 0.2)])], names={1: b"/data/a"}
    )
    with pytest.raises(UsageError, match="is not a log of a replay"):
        dxt_replay.compare_log(source, recorded)
    assert main(["compare", str(source.path), str(recorded)]) == 2
    assert "is not a replay of" in capsys.readouterr().err


def test_every_key_is_explained(source: Capture, tmp_path: Path) -> None:
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "replay.darshan", counters()))
    assert [key for key in schema("compare-log")["properties"] if key != "schema_version"] == list(found.as_json())
    check("compare-log", found.as_json())


def test_single_files_are_made_when_they_are_asked_for(source: Capture, tmp_path: Path) -> None:
    wrong = counters() | {"data/b": counters()["data/b"] | {"POSIX_READS": 2}}
    found = dxt_replay.compare_log(source, replay_log(tmp_path / "replay.darshan", wrong)).by_file
    assert [(each.path, each.equal) for each in found] == [
        ("/data/a", True),
        ("/data/b", False),
        ("/out/c", True),
        ("/data/stream", True),
    ]
    second = list(found)[1]
    assert second.expected["POSIX"]["reads"] + 1 == second.counted["POSIX"]["reads"]
    assert (len(found), second in found) == (4, True)
