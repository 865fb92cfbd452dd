"""Whatever is planted in a target or in place of an output, before or while a command runs: nothing outside changes.
And the table of commands that write an output has all of them."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import product
from multiprocessing.connection import Connection
from pathlib import Path

import click
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dxt_replay.replay.calibration.scratch import NAME as CALIBRATION
from dxt_replay.replay.commands.main import COMMANDS, cli, main
from dxt_replay.replay.target.manifest import MANIFEST_NAME
from dxt_replay.replay.target.placement import TWIN_ROOT
from dxt_replay.replay.target.posix import temporary_name
from dxt_replay.replay.target.protocol import LOCK_NAME
from tests.capture_builder import File, Op, Span, build_capture, read, write
from tests.examples import examples
from tests.output_commands import OUTPUT_COMMANDS
from tests.planted import THINGS, exchange, make_outside, nothing_changes, plant

NOBODY = 65534
IN_TWIN = ("", "/d", "/d/a", "/d/sub", "/d/sub/b", "/d/made", "/d/final", f"/d/{os.fsdecode(temporary_name(b'a'))}")
BESIDE_IT = (MANIFEST_NAME, os.fsdecode(temporary_name(MANIFEST_NAME.encode())), LOCK_NAME)
TARGET_PLACES = (*(f"{TWIN_ROOT}{place}" for place in IN_TWIN), *BESIDE_IT)
MOMENTS = ("before staging", "before the run")
CASES = tuple(product(TARGET_PLACES, THINGS, MOMENTS))

NOT_AS_OUTPUT = {"FIFO", "link to a FIFO"}
"""A pipe is written to as it is, which waits for a reader."""

OUTPUT_CASES = tuple(
    (name, thing, force)
    for name, thing, force in product(OUTPUT_COMMANDS, THINGS, (False, True))
    if thing not in NOT_AS_OUTPUT and (OUTPUT_COMMANDS[name].replaces or not force)
)


def small_capture(folder: Path) -> Path:
    """Files that are read, read and written, made and renamed by a run, and looked at."""
    names: list[File | str | bytes] = ["/d/a", "/d/sub/b", "/d/made", "/d/new", "/d/final", File("/d/seen", size=100)]
    ops = [
        read(0, length=5000, start_ns=0),
        read(1, length=300, start_ns=5000),
        write(1, offset=100, length=50, start_ns=10_000),
        write(2, length=10, start_ns=15_000),
        write(3, length=20, start_ns=20_000),
        Op("rename", 3, other_file_id=4, start_ns=25_000),
        Op("stat", 5, start_ns=30_000),
    ]
    spans = [Span("step", 0, 40_000, step=0), Span("input_wait", 0, 4000, step=0), Span("compute", 5000, 9000, step=0)]
    return build_capture(folder, files=names, ops=ops, spans=spans).path


def call(*words: object) -> int:
    """A command ends with a status of ours, whatever it met."""
    status = main([str(words[0]), "--quiet", *map(str, words[1:])])
    assert status in (0, 1, 2), words
    return status


def target_case(where: str, thing: str, moment: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        outside, target = make_outside(place), place / "target"
        capture = small_capture(place)
        if moment == "before the run":
            target.mkdir(exist_ok=True)
            assert call("stage", capture, "--target", target) == 0
        plant(thing, target / where, outside, place / "aside")
        run = ("run", capture, "--target", target, "--pace", "none", "-o")
        with nothing_changes(outside):
            if moment == "before staging":
                target.mkdir(exist_ok=True)
                call("stage", capture, "--target", target)
            call(*run, place / "1.capture")
            call(*run, place / "2.capture", "--api", "stdio")
            call("verify", target)
            call("stage", "--remove", capture, "--target", target)
            target.mkdir(exist_ok=True)
            call("stage", capture, "--target", target)


def output_case(command: str, thing: str, force: bool) -> None:
    made = OUTPUT_COMMANDS[command]
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        outside, capture = make_outside(place), small_capture(place)
        if made.staged:
            (place / "twin").mkdir(exist_ok=True)
            assert call("stage", capture, "--target", place / "twin") == 0
        out = place / made.name
        plant(thing, out, outside, place / "aside")
        with nothing_changes(outside):
            status = call(*made.line(capture, out, *(["--force"] if force else [])))
        # What is neither a file nor a result of ours is never replaced, and a file only where --force is given.
        if thing in ("hard link", "file") and force and made.is_file:
            assert status == 0
        elif thing != "character device":
            assert status == made.refused
        if thing == "directory":
            assert (out / "mine").read_bytes() == b"mine"


@contextmanager
def flipping(find: Callable[[], Path | None], outside: Path, aside: Path) -> Iterator[None]:
    """From the moment at which `find` returns a path, it is by turns what it was and a link out of the target."""
    link = aside / "link"
    aside.mkdir(exist_ok=True)
    link.symlink_to(outside / "dir")
    stop = threading.Event()

    def flip() -> None:
        path, turns = None, 0
        while not stop.is_set() and path is None:
            path = find()
        while path is not None and (not stop.is_set() or turns % 2):
            try:
                exchange(path, link)
            except FileNotFoundError:
                if stop.is_set():
                    return
                continue
            turns += 1

    thread = threading.Thread(target=flip)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


def calibration_case(rounds: int) -> None:
    """The directory in which a calibration works and a link out of the target change places."""
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        outside, target = make_outside(place), place / "target"
        target.mkdir()
        line = ("calibrate", "--target", target, "--minutes", "0.017", "-o")
        with nothing_changes(outside):
            for i in range(rounds):
                with flipping(lambda: next(target.glob(f"{CALIBRATION}*"), None), outside, place / f"{i}"):
                    call(*line, place / f"{i}.json")


def busy_capture(folder: Path) -> Path:
    """For 0.1 s, 2 ranks make, write, read and rename files of one directory."""
    names, ops = [f"/d/{kind}{i}" for kind in ("", "made-", "new-") for i in range(60)], []
    for i in range(60):
        at = i * 1_600_000
        for rank in (0, 1):
            ops += [read(i, length=100, start_ns=at, rank=rank), write(i, length=50, start_ns=at + 1500, rank=rank)]
        ops += [write(60 + i, length=10, start_ns=at + 3000), Op("close", 60 + i, start_ns=at + 4500)]
        ops.append(Op("rename", 60 + i, other_file_id=120 + i, start_ns=at + 6000))
    return build_capture(folder, files=names, ops=ops).path


def flip_case(where: str, api: str, rounds: int) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        place = Path(scratch)
        outside, target, capture = make_outside(place), place / "target", busy_capture(place)
        target.mkdir(exist_ok=True)
        stage, changes = ("stage", capture, "--target", target), target / where
        run = ("run", capture, "--target", target, "--api", api, "-o")
        made, manifest = target / TWIN_ROOT / "d" / "new-0", target / MANIFEST_NAME
        assert call(*stage) == 0
        with nothing_changes(outside):
            for i in range(rounds):
                made.unlink(missing_ok=True)
                with flipping(lambda: changes if made.exists() else None, outside, place / f"{i}"):
                    assert call(*run, place / f"{i}.capture") in (0, 1)
                with flipping(lambda: changes if manifest.exists() else None, outside, place / f"{i} staging"):
                    call("stage", "--remove", capture, "--target", target)
                    call(*stage)
                assert call("stage", "--remove", capture, "--target", target) == 0
                assert call(*stage) == 0


@settings(max_examples=examples(8), deadline=None)
@given(st.sampled_from(CASES))
def test_things_in_a_target(case: tuple[str, str, str]) -> None:
    target_case(*case)


@settings(max_examples=examples(9), deadline=None)
@given(st.sampled_from(OUTPUT_CASES))
def test_things_in_place_of_an_output(case: tuple[str, str, bool]) -> None:
    output_case(*case)


@pytest.mark.parametrize(("where", "api"), [(f"{TWIN_ROOT}/d", "posix"), (TWIN_ROOT, "stdio")])
def test_a_directory_that_becomes_a_link_meanwhile(where: str, api: str) -> None:
    flip_case(where, api, rounds=1)


def test_a_link_in_place_of_the_directory_of_a_calibration() -> None:
    calibration_case(rounds=1)


def test_mapped_data_are_only_read(tmp_path: Path) -> None:
    """Whatever a capture does to them: it writes, renames, and makes what is not there."""
    real = make_outside(tmp_path) / "dir"
    capture = small_capture(tmp_path)
    maps = ("--map", f"/d={real}")
    with nothing_changes(real):
        for target in (tmp_path / "target", tmp_path / "other"):
            target.mkdir(exist_ok=True)
            call("stage", capture, "--target", target, *maps)
            for api in ("posix", "stdio"):
                words = ("run", capture, "--target", target, *maps, "--pace", "none", "--api", api, "--force")
                assert call(*words, "-o", tmp_path / "r.capture") in (0, 1)
            call("stage", "--remove", capture, "--target", target, *maps)


def _each(cases: list[tuple[str, tuple[object, ...]]], answer: Connection) -> None:
    """Run cases as nobody, and send what failed. Before, one of each kind loads modules that nobody may not read."""
    target_case("mine", "file", "before the run")
    for name, arguments in {name: arguments for name, arguments in cases if name != "output_case"}.items():
        globals()[name](*arguments)
    for command in {arguments[0] for name, arguments in cases if name == "output_case"}:
        output_case(str(command), "file", force=True)
    os.setgroups([])
    os.setgid(NOBODY)
    os.setuid(NOBODY)
    failed = []
    with tempfile.TemporaryDirectory() as home:
        os.environ["HOME"] = home
        for name, arguments in cases:
            try:
                globals()[name](*arguments)
            except BaseException:
                failed.append(f"{name}{arguments}: {traceback.format_exc()}")
    answer.send(failed)


@pytest.mark.skipif(os.geteuid() != 0, reason="another user is played by root")
@pytest.mark.parametrize("share", [95, pytest.param(1, marks=pytest.mark.slow)])
def test_as_another_user(share: int) -> None:
    """`share`: one of so many cases."""
    cases: list[tuple[str, tuple[object, ...]]] = [
        ("target_case", case) for case in CASES[::share] if "device" not in case[1]
    ]
    cases += [("output_case", case) for case in OUTPUT_CASES[:: 2 * share] if "device" not in case[1]]
    cases += [("flip_case", (f"{TWIN_ROOT}/d", "posix", 10))] if share == 1 else []
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=_each, args=(cases, there))
    process.start()
    there.close()
    assert here.recv() == []
    process.join()


@pytest.mark.slow
@pytest.mark.parametrize("thing", THINGS)
def test_every_thing_in_every_place(thing: str) -> None:
    for case in CASES:
        if case[1] == thing:
            target_case(*case)
    for each in OUTPUT_CASES:
        if each[1] == thing:
            output_case(*each)


@pytest.mark.slow
def test_more_rounds_of_directories_that_become_links() -> None:
    for where, api in product((TWIN_ROOT, f"{TWIN_ROOT}/d"), ("posix", "stdio")):
        flip_case(where, api, rounds=20)
    calibration_case(rounds=20)


OUTPUT_OPTIONS = {"-o", "--report", "--record", "--logs"}
INPUT_OPTIONS = {
    "--target", "--baseline", "--candidate", "--library", "--profile", "--source", "--key-file", "--floor",
    "--include", "--check",
}  # fmt: skip
"""Options that take a path: of what is written, and of what is read or staged into."""

QUICK = ("summary csv", "fit")


def test_every_option_that_names_an_output_is_in_the_table(tmp_path: Path) -> None:
    found = set()
    for name in COMMANDS:
        command = cli.get_command(click.Context(cli), name)
        assert command is not None
        for option in (each for each in command.params if isinstance(each, click.Option)):
            if isinstance(option.type, click.Path) or OUTPUT_OPTIONS & set(option.opts):
                assert set(option.opts) & (OUTPUT_OPTIONS | INPUT_OPTIONS), (name, option.opts)
                found |= {(name, word) for word in set(option.opts) & OUTPUT_OPTIONS}
    lines = [command.words.split() for command in OUTPUT_COMMANDS.values()]
    assert {(line[0], word) for line in lines for word in line if word in OUTPUT_OPTIONS} == found


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in OUTPUT_COMMANDS]
)
def test_each_writes_its_output_where_nothing_is_in_the_way(tmp_path: Path, name: str) -> None:
    command, capture = OUTPUT_COMMANDS[name], small_capture(tmp_path)
    out = tmp_path / command.name
    out.parent.mkdir(exist_ok=True)
    if command.staged:
        (tmp_path / "twin").mkdir(exist_ok=True)
        assert main(["stage", str(capture), "--target", str(tmp_path / "twin")]) == 0
    assert main([str(word) for word in command.line(capture, out)]) == 0
    assert out.exists()
    assert out.is_file() == command.is_file
