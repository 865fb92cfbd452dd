"""Outputs: what exists is not lost, and what is not whole never has the name of the result."""

from __future__ import annotations

import multiprocessing
import os
from pathlib import Path

import pyarrow as pa
import pytest

from dxt_replay.traces.errors import TargetError, UnreadableError, unreadable
from dxt_replay.traces.output import check_output, new_file
from dxt_replay.traces.schema import FILES_SCHEMA, SPANS_SCHEMA, CaptureInfo, Job
from dxt_replay.traces.store.reader import open_capture
from dxt_replay.traces.store.writer import (
    OpsWriter,
    begin_capture,
    discard_capture,
    publish_capture,
    write_capture_info,
    write_files,
    write_spans,
)


def fill(working: Path, run_time_s: float = 1.0) -> None:
    with OpsWriter(working):
        pass
    write_files(working, FILES_SCHEMA.empty_table())
    write_spans(working, SPANS_SCHEMA.empty_table())
    write_capture_info(working, CaptureInfo(job=Job(nprocs=1, run_time_s=run_time_s), ranks=(0,)))


def write_capture(path: Path, run_time_s: float = 1.0, *, force: bool = False) -> None:
    working = begin_capture(path, force=force)
    fill(working, run_time_s)
    publish_capture(working, path, force=force)


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.mark.parametrize("force", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize(
    ("place", "text", "said"),
    [
        ("notes.txt", "mine", "notes.txt"),
        ("ops/kernel.cc", "mine", "ops/kernel.cc"),  # a project may have a folder `ops`, as a capture has
        *(("capture.json", text, "capture.json") for text in ("{}", "[]", "not JSON", '{"schema_version": 1}')),
    ],
)
def test_a_folder_with_other_files_in_it_is_never_replaced(
    tmp_path: Path, force: bool, whole: bool, place: str, text: str, said: str
) -> None:
    path = tmp_path / "c.capture"
    if whole:
        write_capture(path)
    (path / place).parent.mkdir(parents=True, exist_ok=True)
    (path / place).write_text(text)
    before = sorted(path.rglob("*"))
    with pytest.raises(TargetError, match=said if whole else "not a capture"):
        write_capture(path, force=force)
    assert (path / place).read_text() == text
    assert sorted(path.rglob("*")) == before
    assert names(tmp_path) == ["c.capture"]


def test_a_capture_is_replaced_by_force_alone(tmp_path: Path) -> None:
    path = tmp_path / "c.capture"
    write_capture(path, 1.0)
    with pytest.raises(TargetError, match="--force replaces it"):
        write_capture(path, 2.0)
    working = begin_capture(path, force=True)
    fill(working, 2.0)
    assert open_capture(path).info.job.run_time_s == 1.0  # until the new one is whole
    discard_capture(working)
    assert open_capture(path).info.job.run_time_s == 1.0
    write_capture(path, 2.0, force=True)
    assert open_capture(path).info.job.run_time_s == 2.0
    assert names(tmp_path) == ["c.capture"]


def test_what_came_there_meanwhile_stays_and_nothing_measured_is_lost(tmp_path: Path) -> None:
    path = tmp_path / "c.capture"
    working = begin_capture(path)
    fill(working, 2.0)
    write_capture(path, 1.0)
    with pytest.raises(TargetError, match="the new result is at"):
        publish_capture(working, path)
    discard_capture(working)
    assert open_capture(path).info.job.run_time_s == 1.0
    (kept,) = [found for found in tmp_path.iterdir() if found != path]
    assert open_capture(kept).info.job.run_time_s == 2.0


def test_two_writers_of_one_name_do_not_share_a_working_directory(tmp_path: Path) -> None:
    path = tmp_path / "c.capture"
    first, second = begin_capture(path), begin_capture(path)
    assert first != second
    fill(first, 1.0)
    fill(second, 2.0)
    publish_capture(first, path)
    publish_capture(second, path, force=True)
    assert open_capture(path).info.job.run_time_s == 2.0
    assert names(tmp_path) == ["c.capture"]


def _die_while_writing(path: Path) -> None:
    fill(begin_capture(path))
    os._exit(9)


def test_what_an_ended_process_left_goes_with_the_next_writer_of_its_node(tmp_path: Path) -> None:
    path = tmp_path / "c.capture"

    def die_while_writing() -> Path:
        process = multiprocessing.get_context("spawn").Process(target=_die_while_writing, args=(path,))
        process.start()
        process.join()
        assert process.exitcode == 9
        return next(place for place in tmp_path.iterdir() if place.suffix == ".dxt-replay" and place != living)

    living: Path | None = None
    left = die_while_writing()
    living = begin_capture(path)
    assert names(tmp_path) == [living.name]
    left = die_while_writing()
    start, token, suffix = left.name.rsplit(".", 2)  # another node's, whose locks are not seen here
    elsewhere = left.rename(tmp_path / f"{start}.{'0' * 8}{token[8:]}.{suffix}")
    write_capture(path)
    assert living.is_dir(), "a writer that lives keeps its directory"
    discard_capture(living)
    assert names(tmp_path) == sorted([elsewhere.name, "c.capture"])


def test_parent_directories_are_not_made(tmp_path: Path) -> None:
    with pytest.raises(TargetError, match=r"absent does not exist: make that directory first"):
        write_capture(tmp_path / "absent" / "c.capture")
    with (
        pytest.raises(TargetError, match=r"absent does not exist: make that directory first"),
        new_file(tmp_path / "absent" / "x"),
    ):
        pass
    (tmp_path / "file").write_text("x")
    with pytest.raises(TargetError, match="cannot write"):
        check_output(tmp_path / "file" / "x")
    assert names(tmp_path) == ["file"]


def test_a_file_is_replaced_by_force_alone_and_only_by_a_whole_one(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"

    def write(text: bytes, *, force: bool = False, meanwhile: bytes = b"", fails: bool = False) -> None:
        with new_file(path, force=force) as file:
            file.write(text)
            if meanwhile:
                path.write_bytes(meanwhile)
            if fails:
                raise ZeroDivisionError

    write(b"1")
    with pytest.raises(TargetError, match="--force replaces it"):
        write(b"2")
    write(b"3", force=True)
    with pytest.raises(ZeroDivisionError):
        write(b"4", force=True, fails=True)
    assert path.read_bytes() == b"3"
    path.unlink()
    with pytest.raises(TargetError, match="exists"):
        write(b"5", meanwhile=b"came first")
    assert path.read_bytes() == b"came first"
    assert names(tmp_path) == ["x.csv"]


@pytest.mark.parametrize("force", [False, True])
def test_neither_links_nor_directories_become_files(tmp_path: Path, force: bool) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    for path, message in ((tmp_path / "link", "symbolic link"), (tmp_path, "not a file")):
        with pytest.raises(TargetError, match=message), new_file(path, force=force):
            pass
    assert names(tmp_path) == ["link"]


def test_a_device_is_written_to_as_it_is() -> None:
    with new_file(Path("/dev/null")) as file:
        file.write(b"gone")
    assert Path("/dev/null").is_char_device()


@pytest.mark.parametrize("name", ["x.html", "x.capture"])
def test_a_place_that_takes_no_new_files_is_named_so(name: str) -> None:
    refused = f"^cannot write /proc/{name}: no new file can be made there; choose another place"
    with pytest.raises(TargetError, match=refused), new_file(Path("/proc") / name):
        pass


def test_memory_that_ends_while_a_table_is_decoded_is_no_damage() -> None:
    error = unreadable(pa.ArrowMemoryError("malloc of size 32768 failed"), "spans.parquet")
    assert isinstance(error, UnreadableError)
    assert "raise the limit of memory" in str(error)
