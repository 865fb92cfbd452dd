"""Pieces on several processes: the results of one process, in order, whoever dies or is interrupted."""

import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from dxt_replay.traces.errors import CaptureError, MissingDependencyError, UsageError, WorkerError
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.workers.workers import AHEAD, ALONE, OPERATIONS_PER_WORKER, Workers
from tests.capture_builder import build_capture, read
from tests.places import PYTHON_PATH

PIECES = tuple(range(12))


def harmonic(piece: int) -> float:
    return sum(1 / (1000 * piece + place) for place in range(1, 1000))


def in_process(piece: int) -> int:
    return os.getpid()


def refusing(piece: int) -> int:
    if piece == 5:
        raise MissingDependencyError("a package", "piece 5", "pip install it")
    return piece


@dataclass(frozen=True)
class Dying:
    """Ends a worker at piece 1, which the caller of two processes never does: for ever, or until it has left a mark."""

    folder: Path
    once: bool

    def __call__(self, piece: int) -> int:
        (self.folder / f"{piece}-{os.getpid()}").touch()
        if piece == 1 and not (self.once and (self.folder / "died").exists()):
            (self.folder / "died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return piece


def alive(pid: int) -> bool:
    stat = Path(f"/proc/{pid}/stat")
    return stat.exists() and stat.read_text().rpartition(")")[2].split()[0] != "Z"


def wait_until(condition: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def total(workers: Workers) -> float:
    with workers.results(harmonic, PIECES) as results:
        return sum(results)


def test_sums_are_the_same_bit_for_bit() -> None:
    with Workers(2) as two, ThreadPoolExecutor(2) as threads:
        found = {total(ALONE), total(two), total(two), total(Workers(executor=threads))}
    assert len(found) == 1


@pytest.mark.parametrize("count", [2, 3])
def test_the_caller_works_too_and_the_other_processes_stay_for_the_next_pass_and_end(count: int) -> None:
    with Workers(count) as workers:
        with workers.results(in_process, PIECES) as results:
            first = list(results)
        with workers.results(in_process, PIECES) as results:
            second = list(results)
        others = {*first, *second} - {os.getpid()}
        assert 1 <= len(others) <= count - 1
        assert os.getpid() in first
        assert all(map(alive, others))
    assert not any(map(alive, others))


@pytest.mark.parametrize(("count", "pieces"), [(2, 2), (2, 3), (3, 12), (8, 2), (8, 5)])
def test_no_more_pieces_are_in_memory_than_the_processes_need(tmp_path: Path, count: int, pieces: int) -> None:
    """The caller folds one result at a time; each begun piece leaves a mark."""
    with Workers(count) as workers, workers.results(partial(marked, tmp_path), range(pieces)) as results:
        for folded, piece in enumerate(results):
            assert piece == folded
            assert len(list(tmp_path.iterdir())) <= folded + AHEAD * count


def marked(folder: Path, piece: int) -> int:
    (folder / str(piece)).touch()
    return piece


@pytest.mark.parametrize(
    ("pieces", "operations"), [(1, None), (12, OPERATIONS_PER_WORKER), (12, 2 * OPERATIONS_PER_WORKER - 1)]
)
def test_little_work_starts_no_process(pieces: int, operations: int | None) -> None:
    said: list[str] = []
    with Workers() as workers:
        workers.on_choice = said.append
        with workers.results(in_process, PIECES[:pieces], operations=operations) as results:
            assert set(results) == {os.getpid()}
    assert len(said) == 1
    assert said[0].startswith("one process does all the work: ")


def test_an_error_comes_at_its_piece_and_as_it_was_raised() -> None:
    with Workers(2) as workers, workers.results(refusing, PIECES) as results:
        assert [next(results) for _ in range(5)] == [0, 1, 2, 3, 4]
        with pytest.raises(MissingDependencyError, match="piece 5 needs a package, which is not installed"):
            next(results)


def test_a_piece_whose_worker_dies_is_done_again(tmp_path: Path) -> None:
    said: list[str] = []
    with Workers(2) as workers:
        workers.on_death = said.append
        with workers.results(Dying(tmp_path, once=True), PIECES, named=lambda piece: f"rank {piece}") as results:
            assert list(results) == list(PIECES)
    assert len(list(tmp_path.glob("1-*"))) == 2
    assert len(said) == 1
    assert "a worker died at rank" in said[0]
    assert "it was replaced" in said[0]


def test_a_piece_whose_worker_dies_twice_is_named(tmp_path: Path) -> None:
    work = Dying(tmp_path, once=False)
    with Workers(2) as workers, workers.results(work, PIECES, named=lambda piece: f"rank {piece}") as results:
        assert next(results) == 0
        with pytest.raises(WorkerError, match=r"a worker died twice at rank 1: .*fewer --workers"):
            next(results)
    pids = {int(mark.name.partition("-")[2]) for mark in tmp_path.glob("*-*")} - {os.getpid()}
    assert pids
    assert not any(map(alive, pids))


def write_for_ever(folder: Path, piece: int) -> None:
    place = folder / str(os.getpid())
    while True:
        place.touch()
        time.sleep(0.001)


def refuse(content: bytes) -> None:
    time.sleep(0.1)
    raise ValueError(f"{len(content)} bytes")


def test_an_error_ends_the_pass_while_large_pieces_are_being_sent() -> None:
    """A pipe holds 64 KiB: the next piece is half sent when the workers end."""
    pieces = [bytes(200_000)] * 8
    with Workers(2) as workers, pytest.raises(ValueError, match="200000"), workers.results(refuse, pieces) as results:
        list(results)


def operations_of(capture: Capture, piece: int) -> int:
    return capture.operation_count() + piece


def gone(capture: Capture) -> None:
    shutil.rmtree(capture.path)


def cut_off(capture: Capture) -> None:
    os.truncate(capture.path / "files.parquet", 20)


@pytest.mark.parametrize("spoil", [gone, cut_off])
def test_a_capture_that_workers_cannot_open_any_more_is_the_error(
    tmp_path: Path, spoil: Callable[[Capture], None]
) -> None:
    capture = build_capture(tmp_path, files=["/d/a"], ops=[read(0)])
    spoil(capture)
    with pytest.raises(CaptureError) as opened:
        open_capture(capture.path)
    for work, pieces in ((partial(operations_of, capture), PIECES), (Capture.operation_count, [capture] * 2)):
        with Workers(2) as workers, pytest.raises(CaptureError) as raised, workers.results(work, pieces) as results:
            list(results)
        assert str(raised.value) == str(opened.value)


def test_when_a_pass_ends_early_nobody_works_any_more(tmp_path: Path) -> None:
    workers = Workers(2)
    with workers.results(partial(write_for_ever, tmp_path), PIECES) as results, ThreadPoolExecutor(1) as waiting:
        waiting.submit(interrupt_when, lambda: len(list(tmp_path.iterdir())) == 2)
        with pytest.raises(KeyboardInterrupt):
            next(results)
        assert [int(mark.name) for mark in tmp_path.iterdir() if alive(int(mark.name))] == [os.getpid()]


def interrupt_when(condition: Callable[[], bool]) -> None:
    wait_until(condition)
    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from tests.traces.workers.test_workers import PIECES, write_for_ever
from dxt_replay.traces.workers.workers import Workers
with Workers(2) as workers, workers.results(partial(write_for_ever, Path(sys.argv[1])), PIECES) as results:
    next(results)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_the_end_of_a_script_ends_its_workers(tmp_path: Path, number: int) -> None:
    """A script without a guard; Ctrl-C goes to all processes of a terminal."""
    script, marks = tmp_path / "script.py", tmp_path / "marks"
    script.write_text(SCRIPT)
    marks.mkdir()
    running = subprocess.Popen(
        [sys.executable, str(script), str(marks)],
        env={**os.environ, "PYTHONPATH": PYTHON_PATH},
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    wait_until(lambda: len(list(marks.iterdir())) == 2 or running.poll() is not None)
    if number == signal.SIGINT:
        os.killpg(running.pid, number)
    else:
        running.kill()
    _, complaint = running.communicate()
    workers = [int(mark.name) for mark in marks.iterdir()]
    assert len(workers) == 2, complaint
    wait_until(lambda: not any(map(alive, workers)))
    assert complaint.count(b"Traceback") == (number == signal.SIGINT), complaint


@pytest.mark.parametrize("count", [0, -1])
def test_at_least_one_process_works(count: int) -> None:
    with pytest.raises(UsageError, match=f"--workers {count}: give at least 1"):
        Workers(count)


def test_errors_keep_their_attributes_on_the_way() -> None:
    import pickle

    error = CaptureError("damaged")
    error.known_to_all = True
    found = pickle.loads(pickle.dumps(error))
    assert (type(found), str(found), found.known_to_all) == (CaptureError, "damaged", True)
