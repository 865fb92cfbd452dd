"""Runs mutated inputs through a reader or a command, in forked processes with limits of memory and time."""

from __future__ import annotations

import contextlib
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
from pathlib import Path
from typing import Any

from dxt_replay.replay.commands.main import main
from dxt_replay.traces.errors import DxtReplayError
from tests.fuzz.mutations import Files, Mutant, mutated
from tests.fuzz.targets import Target, WrongAnswerError, digest
from tests.places import ROOT

MOST_SECONDS = 10
"""Of a processor, for one input."""
MOST_BYTES = 1 << 30
"""Memory that an input may take, beyond what the process has before it."""
_COMMAND_SHARE = 0.06
_MAY_FAIL = ("run", "compare", "fit", "verify", "history")
"""Commands that end with 1 where an operation failed, or a comparison."""
_OURS = tuple(str(ROOT / folder) + os.sep for folder in ("src", "traces", "profiler_merge", "replay", "workloads"))


class _TooLong(BaseException):
    pass


class Campaign:
    """All inputs of a target. `scratch`: a folder for them. `seed`: the same inputs for the same number and seeds.

    counts: of inputs, and of them those accepted, refused, sealed by a checksum, and that went through a command.
    findings: what was neither read nor refused as it should be, with lines of a traceback and the command -> the files.
    """

    def __init__(self, target: Target, pool: list[Files], scratch: Path, seed: int = 0) -> None:
        self.target, self.pool, self.counts = target, pool, Counter[str]()
        self.findings: dict[str, Files] = {}
        self.slowest_s, self.most_bytes = 0.0, 0
        self._scratch, self._seed = scratch, seed

    def run(self, count: int) -> None:
        """Try `count` more inputs; the seeds themselves come first."""
        first = self.counts["inputs"]
        self._fork(self._made(number) for number in range(first, first + count))

    def try_all(self) -> None:
        """Try the seeds as they are, each through the reader and through all commands."""
        self._fork((Mutant(files), files, command) for files in self.pool for command in (None, *self.target.commands))

    def _made(self, number: int) -> tuple[Mutant, Files, tuple[str, ...] | None]:
        """An input, the one that it was made of, and the command that takes it, None for the reader alone."""
        if number < len(self.pool):
            return Mutant(self.pool[number]), self.pool[number], None
        rng = random.Random(f"{self._seed} {self.target.name} {number}")
        base = rng.choice(self.pool)
        mutant = mutated(rng, base, rng.choice(self.pool), self.target.changeable)
        commanded = self.target.commands and not mutant.sealed and rng.random() < _COMMAND_SHARE
        return mutant, base, rng.choice(self.target.commands) if commanded else None

    def _fork(self, work: Iterator[tuple[Mutant, Files, tuple[str, ...] | None]]) -> None:
        """Try inputs in a child. If one ends it, another child goes on with the next one."""
        reports = self._scratch / "reports"
        for mutant, base, command in work:
            child = os.fork()
            if not child:
                shown = os.dup(2)
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                try:
                    for descriptor in (1, 2):
                        os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
                    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
                    with reports.open("wb") as stream:
                        self._tried(mutant, base, command, stream)
                        for each in work:
                            self._tried(*each, stream)
                except BaseException:
                    os.write(shown, traceback.format_exc().encode())
                finally:
                    os._exit(0)
            _, status = os.waitpid(child, 0)
            begun: tuple[Mutant, str] | None = None
            done = -1
            with reports.open("rb") as stream, contextlib.suppress(EOFError, pickle.UnpicklingError):
                while True:
                    begun = pickle.load(stream)
                    done += 1
                    outcome, seconds, peak = pickle.load(stream)
                    self._take(*begun, outcome, seconds, peak)
                    begun = None
            if begun is not None:
                self._take(*begun, f"ended by signal {os.WTERMSIG(status)}", 0.0, 0)
            for _ in range(done):
                next(work, None)  # the child did these

    def _take(self, mutant: Mutant, command: str, outcome: str, seconds: float, peak: int) -> None:
        self.slowest_s, self.most_bytes = max(self.slowest_s, seconds), max(self.most_bytes, peak)
        self.counts.update({"inputs": 1, "sealed": mutant.sealed, "commands": bool(command)})
        if outcome in ("accepted", "refused"):
            self.counts[outcome] += 1
        else:
            self.counts["found"] += 1
            self.findings.setdefault(f"{outcome} | {command}", mutant.files)

    def _tried(self, mutant: Mutant, base: Files, command: tuple[str, ...] | None, stream: Any) -> None:
        """Writes the input when it begins, then what became of it, in how many seconds and bytes."""
        expected = self._answer(base) if mutant.sealed else None
        folder = self._placed(mutant.files)
        pickle.dump((mutant, " ".join(command or ())), stream)
        stream.flush()
        with contextlib.suppress(OSError):
            Path("/proc/self/clear_refs").write_text("5")
        before, started = _resident("VmRSS"), time.process_time()
        with _limits():
            try:
                outcome = self._read(folder, expected) if command is None else _ran(folder, command)
            except DxtReplayError:
                outcome = "refused"
            except BaseException as error:
                frames = [each for each in traceback.extract_tb(error.__traceback__) if each.filename.startswith(_OURS)]
                where = " < ".join(f"{Path(each.filename).relative_to(ROOT)}:{each.lineno}" for each in frames[:-4:-1])
                outcome = f"{type(error).__name__}: {str(error).splitlines()[:1]!r} | {where}"
        peak = max(0, _resident("VmHWM") - before)
        if outcome in ("accepted", "refused") and peak > MOST_BYTES:
            outcome = "more than 1 GiB"
        pickle.dump((outcome, time.process_time() - started, peak), stream)
        stream.flush()

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

    def _placed(self, files: Files) -> Path:
        folder = self._scratch / "input"
        shutil.rmtree(folder, ignore_errors=True)
        for name, data in files.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return folder


def _ran(folder: Path, command: tuple[str, ...]) -> str:
    """What became of a command: one line of error, or nothing that a terminal would obey."""
    given = next(path for path in sorted(folder.iterdir()) if path.name != "t")
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        status = main([word.format(folder=folder, input=given) for word in command])
    printed, text = _text(out), _text(err)
    if "Traceback (most recent call last)" in text:
        raise AssertionError(text.strip()[-300:].replace("\n", " "))
    errors = [line for line in text.splitlines() if line.startswith("dxt-replay: error: ")]
    if status == 2 and len(errors) == 1:
        sound = len(errors[0]) < 2000 and not any(ord(char) < 32 or ord(char) == 127 for char in errors[0])
        return "refused" if sound else "an error with control characters, or of more than 2000"
    if status == 0 or (status == 1 and command[0] in _MAY_FAIL):
        return "accepted" if "\x1b" not in text + printed else "a control sequence was printed"
    return f"status {status} with {len(errors)} errors of {command[0]}"


def _text(stream: io.TextIOWrapper) -> str:
    stream.seek(0)
    return stream.read()


def _resident(name: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)


@contextlib.contextmanager
def _limits() -> Iterator[None]:
    """A signal after the most seconds of the processor, and no more address space than twice MOST_BYTES beyond what is
    in use."""

    def ring(*_: object) -> None:
        raise _TooLong(f"more than {MOST_SECONDS} s")

    in_use = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    hard = resource.getrlimit(resource.RLIMIT_AS)[1]
    resource.setrlimit(resource.RLIMIT_AS, (in_use + 2 * MOST_BYTES, hard))
    most = int(time.process_time()) + 2 * MOST_SECONDS  # ends loops that no handler interrupts
    resource.setrlimit(resource.RLIMIT_CPU, (most, resource.getrlimit(resource.RLIMIT_CPU)[1]))
    signal.signal(signal.SIGPROF, ring)
    signal.setitimer(signal.ITIMER_PROF, MOST_SECONDS)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
