"""`dxt-replay demo`: replay the bundled captures, from the logs to the comparison."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

import click

from dxt_replay.replay.commands.shared_options import PATH, json_output

if TYPE_CHECKING:
    from dxt_replay import Capture, Comparison

RANKS = 2
OUTPUT = Path("dxt-replay-demo")

NEXT_STEPS = """
Next, your own job:
  1. Record it; no line of it changes:
     dxt-replay record -o run.capture -- python train.py
     or merge recordings that you have:
     dxt-replay merge LOG.darshan --profile LOGDIR -o run.capture
  2. See what storage costs it:
     dxt-replay summary run.capture
  3. Write a stand-in for its data on the storage to test:
     dxt-replay stage run.capture --target DIR
  4. Replay it there (--pace steps: as fast as that storage lets training go):
     dxt-replay run run.capture --target DIR -o replay.capture
  5. Look at both:
     dxt-replay compare run.capture replay.capture
     dxt-replay report run.capture replay.capture -o report.html
  To compare two storage systems:
     dxt-replay regress run.capture --baseline DIR --candidate DIR"""


@click.command()
@click.argument("names", nargs=-1, metavar="[imagenet] [cosmictagger]")
@click.option(
    "-o",
    "--output",
    type=PATH,
    metavar="DIR",
    help="Keep the captures and report pages in this new directory.  [default: dxt-replay-demo, or with a number]",
)
@click.option("--keep", is_flag=True, help="Keep the twin data set too (about 150 MB).")
@click.option(
    "--target",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Directory on the file system to replay on.  [default: the system's temporary directory]",
)
@click.option(
    "--warm", is_flag=True, help="Leave the twin in the page cache.  [default: drop it, as before the recorded runs]"
)
@json_output("Print the comparisons as JSON.")
def command(names: tuple[str, ...], output: Path | None, keep: bool, target: Path | None, warm: bool) -> None:
    """Merge, stage, replay on two ranks, compare and draw the bundled captures: the whole job in about a minute.

    Both are recordings of real training runs (see traces/samples/SOURCES.md). The target needs about 150 MB. No
    existing file is overwritten. Exits 1 when a comparison fails.
    """
    from dxt_replay.replay.commands.answer import print_answer
    from dxt_replay.replay.commands.json_output import print_json
    from dxt_replay.replay.commands.session import current
    from dxt_replay.replay.show.compare import comparison_sections
    from dxt_replay.traces.errors import UsageError
    from dxt_replay.traces.samples import NAMES

    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not a bundled capture: choose {' or '.join(NAMES)}")

    as_json = current().as_json

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    kept = _new_directory(output)
    comparisons: dict[str, Comparison] = {}
    pages: dict[str, Path] = {}
    with _workspace(target, keep=keep) as folder:
        for name in names or NAMES:
            comparisons[name] = _replay_sample(name, kept, folder / "twin", cold=not warm, say=say)
            if not as_json:
                print_answer(comparison_sections(comparisons[name]))
            pages[name] = _draw(name, kept)
            say(f"\nReport page, for a browser: {pages[name]}")
        say(f"\nThe captures and pages are in {kept}.")
        say(f"The twin data set is in {folder}." if keep else "The twin data set was removed; --keep leaves it.")
    if as_json:
        print_json(
            {
                "comparisons": {name: comparison.as_json() for name, comparison in comparisons.items()},
                "output": str(kept),
                "reports": {name: str(page) for name, page in pages.items()},
            }
        )
    else:
        say(NEXT_STEPS)
    if not all(comparison.passed for comparison in comparisons.values()):
        raise SystemExit(1)


def _replay_sample(name: str, kept: Path, twin: Path, *, cold: bool, say: Callable[[str], None]) -> Comparison:
    """Merge, stage, replay and compare one sample, and print what each step did."""
    import dxt_replay
    from dxt_replay.traces.units import NS_PER_S, format_count

    source_path, replay_path = kept / f"{name}.capture", kept / f"{name}-replay.capture"
    say(f"\n{name}: a recorded training run")
    _merge(name, source_path, say)
    source = dxt_replay.open_capture(source_path)
    _stage(source, twin, say)
    first, last = source.time_span_ns
    launcher = _mpiexec()
    processes = f"{RANKS} processes" if launcher else "one process"
    say(f"  replaying on {processes}, which takes {(last - first) / NS_PER_S:.0f} s as recorded ...")
    result = _run_on_ranks(launcher, source_path, twin, replay_path, cold=cold)
    recorded, elapsed = result["recorded_s"], result["elapsed_s"]
    say(f"  replayed: {format_count(result['operations'])} operations in {elapsed:.3f} s (recorded: {recorded:.3f} s)")
    for warning in result["warnings"]:
        say(f"  warning: {warning}")
    say("")
    return dxt_replay.compare(source, replay_path)


def _merge(name: str, capture: Path, say: Callable[[str], None]) -> None:
    import dxt_replay
    from dxt_replay.traces.units import format_count, format_duration

    files = dxt_replay.sample(name)
    merged = dxt_replay.merge(files.log, capture, profiles=files.profiles)
    known_within = max(clock.interval_ns[1] - clock.interval_ns[0] for clock in merged.info.clock)
    say(
        f"  merged: {format_count(merged.operations)} reads and writes of {len(merged.info.ranks)} ranks from "
        f"Darshan's trace,\n"
        f"    {format_count(merged.reconstructed)} opens, closes and the like from Darshan's counters, and\n"
        f"    {format_count(merged.spans)} time spans from TensorFlow's profile; their clocks agree within "
        f"{format_duration(known_within)}"
    )


def _stage(source: Capture, twin: Path, say: Callable[[str], None]) -> None:
    import dxt_replay
    from dxt_replay.replay.commands.progress import byte_progress
    from dxt_replay.traces.units import format_bytes, format_counted

    twin.mkdir(exist_ok=True)
    with byte_progress("staging") as progress:
        plan = dxt_replay.stage(source, twin, on_progress=progress).plan
    say(
        f"  staged: {format_counted(len(plan.to_write), 'stand-in')} for the files it read, "
        f"{format_bytes(plan.bytes_to_write)} of random data"
    )


def _draw(name: str, kept: Path) -> Path:
    """Write the report page of a sample and its replay. Raises: MissingDependencyError without plotly."""
    import dxt_replay
    from dxt_replay.replay.commands.progress import status

    page = kept / f"{name}.html"
    with status("drawing"):
        dxt_replay.report(kept / f"{name}.capture", kept / f"{name}-replay.capture", output=page)
    return page


def _new_directory(output: Path | None) -> Path:
    """Make the directory that stays; without a name a new one in the present directory. Raises: TargetError."""
    from dxt_replay.traces.errors import TargetError

    numbered = (OUTPUT if number == 1 else Path(f"{OUTPUT}-{number}") for number in count(1))
    for path in [output] if output is not None else numbered:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            if output is not None:
                raise TargetError(f"{path} exists, and the demo overwrites nothing: choose another -o DIR") from None
        except OSError as error:
            raise TargetError(f"cannot make the directory {path}: {error.strerror}; choose another -o DIR") from error
    raise AssertionError("there is always another number")


def _run_on_ranks(launcher: str | None, source: Path, target: Path, output: Path, *, cold: bool) -> dict:
    """`dxt-replay run` under a launcher, else in one process; its result."""
    from dxt_replay.traces.errors import ReplayError

    command = [
        *([launcher, "-n", str(RANKS)] if launcher else []),
        sys.executable,
        "-m",
        "dxt_replay.replay.commands.main",
        "run",
    ]
    command += [str(source.absolute()), "--target", str(target.absolute()), "-o", str(output.absolute()), "--json"]
    # Not from the present directory, from which Python imports first: a checkout holds the sources uncompiled.
    done = subprocess.run(
        [*command, "--cold" if cold else "--warm"],
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        cwd=output.absolute().parent,
    )
    if done.returncode:
        raise ReplayError(f"the replay ended with exit status {done.returncode}: see its message above")
    result: dict = json.loads(done.stdout)
    return result


def _mpiexec() -> str | None:
    """The launcher of this Python's environment (the mpich wheel's), else the system's; None without mpi4py."""
    if find_spec("mpi4py") is None:
        return None
    return shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


@contextmanager
def _workspace(target: Path | None, *, keep: bool) -> Iterator[Path]:
    from dxt_replay.traces.errors import TargetError

    try:
        folder = Path(tempfile.mkdtemp(prefix="dxt-replay-demo-", dir=target))
    except OSError as error:
        raise TargetError(f"cannot make a directory in {target or tempfile.gettempdir()}: {error.strerror}") from error
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
