"""`dxt-replay demo`: replay a bundled capture, from the logs to the comparison."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Annotated, Any

import click

from dxt_replay.replay.commands import session
from dxt_replay.replay.commands.face import Argument, Option, PathLike, command, output
from dxt_replay.traces.errors import ReplayError, TargetError, UsageError

RANKS = 2
OUTPUT = Path("dxt-replay-demo")

NEXT_STEPS = """
Next, your own job: record it, see what storage costs it, replay it on the storage to test, compare:
  dxt-replay record -o run.capture -- python train.py
  dxt-replay summary run.capture
  dxt-replay stage run.capture --target DIR
  dxt-replay run run.capture --target DIR --pace steps -o replay.capture
  dxt-replay compare run.capture replay.capture
Two storage systems:
  dxt-replay regress run.capture --baseline DIR --candidate DIR"""


@command(name="demo")
def _demo(
    names: Annotated[Sequence[str], Argument("[imagenet] [cosmictagger]", text=True)] = (),
    *,
    output: Annotated[
        PathLike | None,
        output("DIR", "Keep captures and pages in this new directory.  [default: dxt-replay-demo, or with a number]"),
    ] = None,
    target: Annotated[
        PathLike | None, Option("Directory on the file system to replay on.  [default: the temporary directory]", "DIR")
    ] = None,
) -> int:
    """Merge, stage, replay on two ranks, compare and draw a bundled capture, in about half a minute.

    Both are recordings of real training runs (see traces/samples/SOURCES.md); imagenet is the default. The target needs
    about 150 MB. No existing file is overwritten. Exits 1 when a comparison fails.
    """
    from dxt_replay.traces.samples import NAMES

    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not a bundled capture: choose {' or '.join(NAMES)}")
    kept, as_json, done = _new_directory(output), session.current().as_json, {}
    try:
        folder = Path(tempfile.mkdtemp(prefix="dxt-replay-demo-", dir=target))
    except OSError as error:
        raise TargetError(f"cannot make a directory in {target or tempfile.gettempdir()}: {error.strerror}") from error
    try:
        for name in names or NAMES[:1]:
            done[name] = _shown(name, kept, folder / "twin")
    finally:
        shutil.rmtree(folder, ignore_errors=True)
    if as_json:
        pages = {name: str(kept / f"{name}.html") for name in done}
        compared = {name: comparison.as_json() for name, comparison in done.items()}
        session.print_json({"comparisons": compared, "output": str(kept), "reports": pages})
    else:
        click.echo(f"\nCaptures and pages are in {kept}; the twin data set was removed.\n{NEXT_STEPS}")
    return int(not all(comparison.passed for comparison in done.values()))


def _shown(name: str, kept: Path, twin: Path) -> Any:
    """Merge, stage, replay, draw and compare one sample, and print a line for each step."""
    import dxt_replay
    from dxt_replay.traces.units import format_bytes, format_count, format_counted, format_duration

    def say(text: str) -> None:
        click.echo(text, err=session.current().as_json)

    files, source, replay = dxt_replay.sample(name), kept / f"{name}.capture", kept / f"{name}-replay.capture"
    page = kept / f"{name}.html"
    say(f"\n{name}: a recorded training run")
    merged = dxt_replay.merge(files.log, source, profiles=files.profiles)
    known_within = max(clock.interval_ns[1] - clock.interval_ns[0] for clock in merged.info.clock)
    say(
        f"  merged: {format_count(merged.operations)} reads and writes of {len(merged.info.ranks)} ranks from "
        f"Darshan's trace,\n    {format_count(merged.reconstructed)} opens, closes and the like from its counters, "
        f"{format_count(merged.spans)} spans from TensorFlow's profile;\n    their clocks agree within "
        f"{format_duration(known_within)}"
    )
    twin.mkdir(exist_ok=True)
    plan = dxt_replay.stage(source, twin).plan
    files_made = format_counted(len(plan.to_write), "stand-in")
    say(f"  staged: {files_made} for the files it read, {format_bytes(plan.bytes_to_write)} of random data")
    # The launcher of this Python's environment (the mpich wheel's), else the system's.
    own = shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")
    launcher = own if find_spec("mpi4py") is not None else None
    say(f"  replaying on {f'{RANKS} processes' if launcher else 'one process'}, as long as recorded ...")
    words = [*([launcher, "-n", str(RANKS)] if launcher else []), sys.executable, "-m", "dxt_replay"]
    words += ["run", str(source.absolute()), "--target", str(twin.absolute()), "-o", str(replay.absolute()), "--json"]
    # Not from the present directory, from which Python imports first: a checkout holds the sources uncompiled.
    ran = subprocess.run(words, stdout=subprocess.PIPE, text=True, check=False, cwd=kept.absolute())
    if ran.returncode:
        raise ReplayError(f"the replay ended with exit status {ran.returncode}: see its message above")
    result = json.loads(ran.stdout)
    times = f"{result['elapsed_s']:.3f} s (recorded: {result['recorded_s']:.3f} s)"
    say(f"  replayed: {format_count(result['operations'])} operations in {times}")
    for warning in result["warnings"]:
        say(f"  warning: {warning}")
    comparison = dxt_replay.compare(source, replay)
    dxt_replay.report(source, replay, output=page)
    say(f"  compared: {comparison.headline}\n  drawn: {page}, for a browser")
    return comparison


def _new_directory(output: PathLike | None) -> Path:
    """Make the directory that stays; without a name a new one in the present directory. Raises: TargetError."""
    numbered = (OUTPUT if number == 1 else Path(f"{OUTPUT}-{number}") for number in count(1))
    for path in numbered if output is None else [Path(output)]:
        try:
            path.mkdir()
            return path
        except FileExistsError:
            if output is not None:
                raise TargetError(f"{path} exists, and the demo overwrites nothing: choose another -o DIR") from None
        except OSError as error:
            raise TargetError(f"cannot make the directory {path}: {error.strerror}; choose another -o DIR") from error
    raise AssertionError("there is always another number")
