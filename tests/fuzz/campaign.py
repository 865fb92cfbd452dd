"""Runs mutated inputs through a reader, in forked processes with limits of memory and time, guided by coverage.

An input that reaches a line of the project which no input reached before becomes one to mutate. atheris was tried: it
is fast, but it ends at the first finding, has no wheels for all Pythons, and needs mutations of our own for compressed
and structured formats anyway; `sys.settrace` over the project's own lines is enough for inputs of a few kilobytes.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import random
import resource
import select
import shutil
import signal
import sys
import time
import traceback
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.errors import DxtReplayError
from tests.fuzz.mutations import Files, Mutant, mutated
from tests.fuzz.targets import Target, WrongAnswerError, digest
from tests.places import ROOT

MOST_SECONDS = 10
"""Of a processor, for one input."""
MOST_WAITING_SECONDS = 60
"""Of a clock, for one input, on a machine that may be busy with other things."""
MOST_BYTES = 1 << 30
"""Memory that an input may take, beyond what the process has before it."""
BATCH = 100
"""Inputs of a process."""
_COMMAND_SHARE = 0.06
_MAY_FAIL = ("run", "compare", "fit", "verify", "history")
"""Commands that end with 1 where an operation failed, or a comparison."""
_ESCAPE = "\x1b"
"""What begins a control sequence of a terminal."""
_OURS = tuple(str(ROOT / folder) + os.sep for folder in ("traces", "profiler_merge", "replay", "workloads"))


class _TooLong(BaseException):
    pass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """An input that was neither read nor refused as it should be. `what`: one line; `where`: lines of a traceback."""

    target: str
    what: str
    where: str
    files: Files
    command: str


@dataclass(slots=True)
class Tally:
    """What became of the inputs of a target. Memory in bytes, times in seconds."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    sealed: int = 0
    commands: int = 0
    new: int = 0
    slowest_s: float = 0.0
    most_bytes: int = 0
    findings: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Report:
    outcome: str
    mutant: Mutant | None
    lines: list[tuple[str, int]]
    seconds: float
    peak: int
    command: str
    where: str


class Campaign:
    """All inputs of a target. `scratch`: a folder for them. `seed`: the same inputs for the same number and seeds."""

    def __init__(self, target: Target, pool: list[Files], scratch: Path, seed: int = 0) -> None:
        self.target = target
        self.pool = list(pool)
        self._seeds = len(pool)
        self.tally = Tally()
        self.findings: dict[str, Finding] = {}
        self._scratch = scratch
        self._seed = seed
        self._covered: set[tuple[str, int]] = set()

    def run(self, count: int) -> None:
        """Try `count` more inputs; the seeds themselves come first."""
        begin = self.tally.inputs
        while self.tally.inputs < begin + count:
            self._batch(min(BATCH, begin + count - self.tally.inputs))

    def try_all(self, inputs: list[Files]) -> None:
        """Try these inputs as they are, each through the reader and through all commands."""
        for files in inputs:
            for command in (None, *range(len(self.target.commands))):
                self._fork([(Mutant(files), command)])

    def _batch(self, count: int) -> None:
        first = self.tally.inputs
        self._fork([(None, number) for number in range(first, first + count)])

    def _fork(self, work: list[tuple[Mutant | None, int | None]]) -> None:
        receive, send = os.pipe()
        child = os.fork()
        if not child:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends it
            os.close(receive)
            try:
                shown = os.dup(2)
                with os.fdopen(send, "wb") as stream:
                    self._work(work, stream)
            except BaseException:
                os.write(shown, traceback.format_exc().encode())
            finally:
                os._exit(0)
        os.close(send)
        try:
            self.tally.inputs += self._reports(child, receive, len(work))
        except KeyboardInterrupt:
            with contextlib.suppress(ProcessLookupError, ChildProcessError):
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
            raise

    def _reports(self, child: int, receive: int, expected: int) -> int:
        """Take the reports of a child; returns how many inputs it began."""
        data, done = b"", 0
        ended = False
        while True:
            ready = select.select([receive], [], [], 2 * MOST_WAITING_SECONDS)[0]
            if not ready:
                os.kill(child, signal.SIGKILL)
                ended = True
                break
            piece = os.read(receive, 1 << 20)
            if not piece:
                break
            data += piece
            while len(data) >= 8 and len(data) >= 8 + (size := int.from_bytes(data[:8], "little")):
                self._take(pickle.loads(data[8 : 8 + size]))
                data, done = data[8 + size :], done + 1
        os.close(receive)
        _, status = os.waitpid(child, 0)
        if done < expected:
            what = "hang" if ended else f"ended by signal {os.WTERMSIG(status)}"
            with contextlib.suppress(OSError, EOFError, pickle.UnpicklingError):
                mutant, command = pickle.loads((self._scratch / "now").read_bytes())
                self._take(_Report(what, mutant, [], float(MOST_WAITING_SECONDS * ended), 0, command, ""))
            done += 1
        return done

    def _take(self, report: _Report) -> None:
        tally = self.tally
        tally.slowest_s = max(tally.slowest_s, report.seconds)
        tally.most_bytes = max(tally.most_bytes, report.peak)
        tally.commands += bool(report.command)
        if report.mutant is not None:
            tally.sealed += report.mutant.sealed
        if report.lines:
            tally.new += 1
            self._covered.update(report.lines)
            if report.mutant is not None and report.outcome in ("accepted", "refused"):
                self.pool.append(report.mutant.files)
        if report.outcome == "accepted":
            tally.accepted += 1
        elif report.outcome == "refused":
            tally.refused += 1
        else:
            what = report.outcome.splitlines()[0]
            tally.findings[what] += 1
            if report.mutant is not None:
                self.findings.setdefault(
                    what + report.where,
                    Finding(
                        target=self.target.name,
                        what=what,
                        where=report.where,
                        files=report.mutant.files,
                        command=report.command,
                    ),
                )

    def _work(self, work: list[tuple[Mutant | None, int | None]], stream: Any) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
        for mutant, number in work:
            rng = random.Random(f"{self._seed} {self.target.name} {number}")
            command = None
            if mutant is not None:
                command = None if number is None else self.target.commands[number]
            elif number is not None and number < self._seeds:
                mutant = Mutant(self.pool[number])
            base = rng.choice(self.pool)
            if mutant is None:
                mutant = mutated(rng, base, rng.choice(self.pool), self.target.changeable)
                if not mutant.sealed and rng.random() < _COMMAND_SHARE:
                    command = rng.choice(self.target.commands)
            report = self._tried(mutant, base, command)
            data = pickle.dumps(report)
            stream.write(len(data).to_bytes(8, "little") + data)
            stream.flush()

    def _tried(self, mutant: Mutant, base: Files, command: tuple[str, ...] | None) -> _Report:
        expected = self._answer(base) if mutant.sealed else None
        folder = self._placed(mutant.files)
        shown = " ".join(command or ())
        (self._scratch / "now").write_bytes(pickle.dumps((mutant, shown)))
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        before = _resident()
        started = time.process_time()
        lines: list[tuple[str, int]] = []
        where = ""
        with _limits(), _traced(self._covered, lines):
            try:
                outcome = self._read(folder, expected) if command is None else self._ran(folder, command)
            except _TooLong as error:
                outcome, where = f"took more than {MOST_SECONDS} s", _where(error)
            except DxtReplayError:
                outcome = "refused"
            except MemoryError as error:
                outcome, where = "MemoryError", _where(error)
            except BaseException as error:
                outcome, where = f"{type(error).__name__}: {str(error)[:100]!r}", _where(error)
        seconds, peak = time.process_time() - started, _resident("VmHWM") - before
        if outcome in ("accepted", "refused") and peak > MOST_BYTES:
            outcome = "more than 1 GiB"
        keep = bool(lines) or mutant.sealed or outcome not in ("accepted", "refused")
        return _Report(outcome, mutant if keep else None, lines, seconds, max(0, peak), shown, where)

    def _answer(self, files: Files) -> str | None:
        """The digest of what a sound input holds; None where it is refused."""
        try:
            return digest(self.target.read(self._placed(files)))
        except DxtReplayError:
            return None

    def _read(self, folder: Path, expected: str | None) -> str:
        answer = self.target.read(folder)
        if expected is None or digest(answer) == expected:
            return "accepted"
        if not self.target.warned(answer):
            raise WrongAnswerError("a change that a checksum covers gave another answer")
        return "refused"

    def _ran(self, folder: Path, command: tuple[str, ...]) -> str:
        given = next(path for path in sorted(folder.iterdir()) if path.name != "t")
        arguments = [word.format(folder=folder, input=given) for word in command]
        out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
            status = main(arguments)
        text, printed = _text(err), _text(out)
        if "Traceback (most recent call last)" in text:
            last = text.strip().splitlines()
            places = [line.strip() for line in last if line.startswith("  File")][-3:]
            raise AssertionError(f"traceback: {last[-1][:90]} {' '.join(places)[-220:]}")
        errors = [line for line in text.splitlines() if line.startswith("dxt-replay: error: ")]
        if status == 2 and len(errors) == 1:
            return _said_well(errors[0])
        if status == 0 or (status == 1 and arguments[0] in _MAY_FAIL):
            return "accepted" if _ESCAPE not in text + printed else "a control sequence was printed"
        return f"status {status} with {len(errors)} errors of {arguments[0]}"

    def _placed(self, files: Files) -> Path:
        folder = self._scratch / "input"
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder


def _text(stream: io.TextIOWrapper) -> str:
    stream.flush()
    stream.seek(0)
    return stream.read()


def _said_well(message: str) -> str:
    if "\n" in message or any(ord(char) < 32 or ord(char) == 127 for char in message):
        return "an error of more than one line, or with control characters"
    return "refused" if len(message) < 2000 else "an error of more than 2000 characters"


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_OURS)]
    return " < ".join(f"{Path(frame.filename).relative_to(ROOT)}:{frame.lineno}" for frame in frames[:-4:-1])


def _resident(name: str = "VmRSS") -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(name):
            return int(line.split()[1]) * 1024
    return 0


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """An alarm after the most seconds, and no more address space than twice MOST_BYTES beyond what is in use."""

    def ring(*_: object) -> None:
        raise _TooLong

    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 2 * MOST_BYTES, hard))
    signal.signal(signal.SIGALRM, ring)
    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_REAL, MOST_WAITING_SECONDS)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))


@contextlib.contextmanager
def _traced(covered: set[tuple[str, int]], found: list[tuple[str, int]]) -> Iterator[None]:
    """Lines of the project that run and are not in `covered` are added to both. Known functions cost little."""
    left: dict[Any, set[int]] = {}

    def lines_of(code: Any) -> set[int]:
        if code not in left:
            file = code.co_filename
            lines = {line for _, _, line in code.co_lines() if line} if file.startswith(_OURS) else set()
            left[code] = {line for line in lines if (file, line) not in covered}
        return left[code]

    def enter(frame: Any, event: str, _: Any) -> Any:
        return step if lines_of(frame.f_code) else None

    def step(frame: Any, event: str, _: Any) -> Any:
        unseen = left[frame.f_code]
        if frame.f_lineno in unseen:
            unseen.discard(frame.f_lineno)
            key = (frame.f_code.co_filename, frame.f_lineno)
            covered.add(key)
            found.append(key)
        return step if unseen else None

    before = sys.gettrace()
    sys.settrace(enter)
    try:
        yield
    finally:
        sys.settrace(before)
