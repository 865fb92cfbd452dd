"""Runs mutated inputs through a reader or a command, in forked processes with limits of memory and time."""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import pickle
import random
import resource
import shutil
import signal
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
_OURS = tuple(str(ROOT / folder) + os.sep for folder in ("traces", "profiler_merge", "replay", "workloads"))


class _TooLong(BaseException):
    pass


@dataclass(slots=True)
class Tally:
    """What became of the inputs of a target. Memory in bytes, times in seconds."""

    inputs: int = 0
    accepted: int = 0
    refused: int = 0
    sealed: int = 0
    commands: int = 0
    slowest_s: float = 0.0
    most_bytes: int = 0
    findings: Counter[str] = field(default_factory=Counter)


class Campaign:
    """All inputs of a target. `scratch`: a folder for them. `seed`: the same inputs for the same number and seeds.

    findings: what and where -> (what, where, the command, the files), of an input that was neither read nor refused as
    it should be.
    """

    def __init__(self, target: Target, pool: list[Files], scratch: Path, seed: int = 0) -> None:
        self.target, self.pool, self.tally = target, pool, Tally()
        self.findings: dict[str, tuple[str, str, str, Files]] = {}
        self._scratch, self._seed = scratch, seed

    def run(self, count: int) -> None:
        """Try `count` more inputs; the seeds themselves come first."""
        last = self.tally.inputs + count
        while self.tally.inputs < last:
            first = self.tally.inputs
            self._fork([(None, number) for number in range(first, min(first + BATCH, last))])

    def try_all(self, inputs: list[Files]) -> None:
        """Try these inputs as they are, each through the reader and through all commands."""
        for files in inputs:
            for command in (None, *range(len(self.target.commands))):
                self._fork([(Mutant(files), command)])

    def _fork(self, work: list[tuple[Mutant | None, int | None]]) -> None:
        """Try inputs in a child, whose report of each comes through a file: a child that ends early has fewer."""
        reports, now = self._scratch / "reports", self._scratch / "now"
        child = os.fork()
        if not child:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            shown = os.dup(2)
            try:
                with reports.open("wb") as stream:
                    self._work(work, stream)
            except BaseException:
                os.write(shown, traceback.format_exc().encode())
            finally:
                os._exit(0)
        _, status = os.waitpid(child, 0)
        done = 0
        with reports.open("rb") as stream, contextlib.suppress(EOFError, pickle.UnpicklingError):
            while True:
                self._take(*pickle.load(stream))
                done += 1
        if done < len(work):
            mutant, command = pickle.loads(now.read_bytes())
            self._take(f"ended by signal {os.WTERMSIG(status)}", "", mutant, command, 0.0, 0)
            done += 1
        self.tally.inputs += done

    def _take(self, outcome: str, where: str, mutant: Mutant, command: str, seconds: float, peak: int) -> None:
        tally = self.tally
        tally.slowest_s, tally.most_bytes = max(tally.slowest_s, seconds), max(tally.most_bytes, peak)
        tally.commands += bool(command)
        tally.sealed += mutant.sealed
        tally.accepted += outcome == "accepted"
        tally.refused += outcome == "refused"
        if outcome not in ("accepted", "refused"):
            what = outcome.splitlines()[0]
            tally.findings[what] += 1
            self.findings.setdefault(what + where, (what, where, command, mutant.files))

    def _work(self, work: list[tuple[Mutant | None, int | None]], stream: Any) -> None:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        faulthandler.disable()
        for descriptor in (1, 2):
            os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        for mutant, number in work:
            rng = random.Random(f"{self._seed} {self.target.name} {number}")
            command, base = None, rng.choice(self.pool)
            if mutant is not None:
                command = None if number is None else self.target.commands[number]
            elif number is not None and number < len(self.pool):
                mutant = Mutant(self.pool[number])
            else:
                mutant = mutated(rng, base, rng.choice(self.pool), self.target.changeable)
                if not mutant.sealed and rng.random() < _COMMAND_SHARE:
                    command = rng.choice(self.target.commands)
            pickle.dump(self._tried(mutant, base, command), stream)
            stream.flush()

    def _tried(
        self, mutant: Mutant, base: Files, command: tuple[str, ...] | None
    ) -> tuple[str, str, Mutant, str, float, int]:
        expected = self._answer(base) if mutant.sealed else None
        folder = self._placed(mutant.files)
        shown = " ".join(command or ())
        (self._scratch / "now").write_bytes(pickle.dumps((mutant, shown)))
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        before, started, where = _resident("VmRSS"), time.process_time(), ""
        with _limits():
            try:
                outcome = self._read(folder, expected) if command is None else self._ran(folder, command)
            except _TooLong as error:
                outcome, where = f"took more than {MOST_SECONDS} s", _where(error)
            except DxtReplayError:
                outcome = "refused"
            except BaseException as error:
                outcome, where = f"{type(error).__name__}: {str(error)[:100]!r}", _where(error)
        seconds, peak = time.process_time() - started, max(0, _resident("VmHWM") - before)
        if outcome in ("accepted", "refused") and peak > MOST_BYTES:
            outcome = "more than 1 GiB"
        return outcome, where, mutant, shown, seconds, peak

    def _answer(self, files: Files) -> str | None:
        """The digest of what a sound input holds; None where it is refused."""
        with contextlib.suppress(DxtReplayError):
            return digest(self.target.read(self._placed(files)))
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
        for stream in (out, err):
            stream.flush()
        printed, text = (stream.buffer.getvalue().decode() for stream in (out, err))  # type: ignore[attr-defined]
        if "Traceback (most recent call last)" in text:
            lines = text.strip().splitlines()
            places = [line.strip() for line in lines if line.startswith("  File")][-3:]
            raise AssertionError(f"traceback: {lines[-1][:90]} {' '.join(places)[-220:]}")
        errors = [line for line in text.splitlines() if line.startswith("dxt-replay: error: ")]
        if status == 2 and len(errors) == 1:
            if any(ord(char) < 32 or ord(char) == 127 for char in errors[0]) or len(errors[0]) > 2000:
                return "an error with control characters, or of more than 2000"
            return "refused"
        if status == 0 or (status == 1 and arguments[0] in _MAY_FAIL):
            return "accepted" if "\x1b" not in text + printed else "a control sequence was printed"
        return f"status {status} with {len(errors)} errors of {arguments[0]}"

    def _placed(self, files: Files) -> Path:
        folder = self._scratch / "input"
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder


def _where(error: BaseException) -> str:
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename.startswith(_OURS)]
    return " < ".join(f"{Path(frame.filename).relative_to(ROOT)}:{frame.lineno}" for frame in frames[:-4:-1])


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """An alarm after the most seconds, and no more address space than twice MOST_BYTES beyond what is in use."""

    def ring(*_: object) -> None:
        raise _TooLong

    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 2 * MOST_BYTES, hard))
    most = int(time.process_time()) + MOST_WAITING_SECONDS  # ends loops that no handler interrupts
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    timers = (
        (signal.SIGALRM, signal.ITIMER_REAL, MOST_WAITING_SECONDS),
        (signal.SIGPROF, signal.ITIMER_PROF, MOST_SECONDS),
    )
    for number, timer, seconds in timers:
        signal.signal(number, ring)
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for _, timer, _ in timers:
            signal.setitimer(timer, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
