"""Pieces on several processes: the results of one process, in order, whoever dies or is interrupted."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import pytest

from dxt_replay.traces.errors import CaptureError, MissingDependencyError, UsageError, WorkerError
from dxt_replay.traces.store.reader import Capture, open_capture
from dxt_replay.traces.workers import AHEAD, ALONE, OPERATIONS_PER_WORKER, Workers
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


def dying(piece: int) -> int:
    if piece == 1:
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
    with pytest.raises(UsageError, match="--workers 0: give at least 1"):
        Workers(0)
    with Workers(2) as two, ThreadPoolExecutor(2) as threads:
        found = {total(ALONE), total(two), total(two), total(Workers(executor=threads))}
    assert len(found) == 1


def test_no_more_pieces_are_in_memory_than_the_processes_need(tmp_path: Path) -> None:
    """The caller folds one result at a time; each begun piece leaves a mark."""
    with Workers(3) as workers, workers.results(partial(marked, tmp_path), PIECES) as results:
        for folded, piece in enumerate(results):
            assert piece == folded
            assert len(list(tmp_path.iterdir())) <= folded + AHEAD * 3


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


def test_a_piece_whose_worker_dies_is_named() -> None:
    died = pytest.raises(WorkerError, match=r"a worker died at rank [01]: .*fewer --workers")
    with Workers(2) as workers, died, workers.results(dying, PIECES, named=lambda piece: f"rank {piece}") as results:
        list(results)


def write_for_ever(folder: Path, piece: int) -> None:
    place = folder / str(os.getpid())
    while True:
        place.touch()
        time.sleep(0.001)


def operations_of(capture: Capture, piece: int) -> int:
    return capture.operation_count() + piece


def test_a_capture_that_workers_cannot_open_any_more_is_the_error(tmp_path: Path) -> None:
    capture = build_capture(tmp_path, files=["/d/a"], ops=[read(0)])
    os.truncate(capture.path / "files.parquet", 20)
    with pytest.raises(CaptureError) as opened:
        open_capture(capture.path)
    for work, pieces in ((partial(operations_of, capture), PIECES), (Capture.operation_count, [capture] * 2)):
        with Workers(2) as workers, pytest.raises(CaptureError) as raised, workers.results(work, pieces) as results:
            list(results)
        assert str(raised.value) == str(opened.value)


def write_a_while(folder: Path, piece: int) -> None:
    for _ in range(100):
        (folder / f"{piece}-{time.monotonic_ns()}").touch()
        time.sleep(0.001)
    if piece == 0:
        raise ValueError


def test_when_a_pass_ends_early_nobody_works_any_more(tmp_path: Path) -> None:
    with Workers(2) as workers:
        work = partial(write_a_while, tmp_path)
        with pytest.raises(ValueError), workers.results(work, PIECES) as results:  # noqa: PT011
            next(results)
        written = set(tmp_path.iterdir())
        time.sleep(0.05)
        assert set(tmp_path.iterdir()) == written


SCRIPT = """
import sys
from functools import partial
from pathlib import Path
from tests.traces.test_workers import PIECES, write_for_ever
from dxt_replay.traces.workers import Workers
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
