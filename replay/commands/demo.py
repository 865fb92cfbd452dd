"""`dxt-replay demo`: the main job on the bundled captures, end to end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from replay.fidelity.compare import Comparison

RANKS = 2

LEAST_SIMILARITY = 0.9
"""Three of the ten factors are the storage's own: a disk ten times faster than the recorded one leaves about 0.93."""


@click.command()
@click.argument("names", nargs=-1, metavar="[imagenet] [cosmictagger]")
@click.option("--keep", is_flag=True, help="Keep the captures and the twin data set.")
@click.option(
    "--target",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Directory on the file system to replay on.  [default: the system's temporary directory]",
)
@click.option("--warm", is_flag=True, help="Leave the twin in the page cache; the recorded runs began with a cold one.")
@click.option("--json", "as_json", is_flag=True, help="Print the comparisons as JSON.")
def command(names: tuple[str, ...], keep: bool, target: Path | None, warm: bool, as_json: bool) -> None:
    """Merge, stage, replay on two ranks and compare the bundled captures.

    Both are real training runs (see traces/samples/SOURCES.md). Needs about 150 MB in the target and half a minute.
    Exits 1 when a comparison fails.
    """
    from replay.commands.output import print_json
    from replay.show.terminal import print_comparison
    from traces.errors import UsageError
    from traces.samples import NAMES

    unknown = [name for name in names if name not in NAMES]
    if unknown:
        raise UsageError(f"there is no bundled capture {unknown[0]!r}: choose {' or '.join(NAMES)}")

    def say(text: str) -> None:
        click.echo(text, err=as_json)

    comparisons = {}
    with _workspace(target, keep=keep) as folder:
        for name in names or NAMES:
            comparison = _replay_sample(name, folder, cold=not warm, say=say)
            comparisons[name] = comparison
            if not as_json:
                print_comparison(comparison.as_json())
        say(f"captures and twin data set: {folder}" if keep else f"captures were in {folder}; --keep leaves them there")
    if as_json:
        print_json({"comparisons": {name: comparison.as_json() for name, comparison in comparisons.items()}})
    if not all(comparison.passed for comparison in comparisons.values()):
        raise SystemExit(1)


def _replay_sample(name: str, folder: Path, *, cold: bool, say: Callable[[str], None]) -> Comparison:
    from profiler_merge.merge import merge
    from replay.commands.progress import byte_progress
    from replay.fidelity.compare import Thresholds, compare
    from replay.twin.stage import plan_stage, stage
    from traces.samples import sample
    from traces.store.reader import open_capture
    from traces.units import format_bytes, format_count

    files = sample(name)
    source_path, replay_path = folder / f"{name}.capture", folder / f"{name}-replay.capture"
    merged = merge([files.log], list(files.profiles), source_path)
    clocks = merged.info.clock
    say(
        f"\n{name}: merged {format_count(merged.operations)} operations of {len(merged.info.ranks)} ranks and "
        f"{format_count(merged.spans)} spans, {format_count(merged.reconstructed)} more reconstructed; clocks by "
        f"{clocks[0].method}, known to "
        f"{max(clock.interval_ns[1] - clock.interval_ns[0] for clock in clocks) / 1000:.1f} us"
    )
    source = open_capture(source_path)
    plan = plan_stage(source, folder / "twin")
    with byte_progress("staging", plan.bytes_to_write) as progress:
        stage(plan, progress=progress)
    say(f"staged {format_count(len(plan.to_write))} files, {format_bytes(plan.bytes_to_write)}")
    result = _run_on_ranks(source_path, folder / "twin", replay_path, cold=cold)
    lag, jitter = (result[key]["p99"] for key in ("lag_us", "jitter_us"))
    say(
        f"replayed on {result['processes']} processes in {result['elapsed_s']:.3f} s (recorded: "
        f"{result['recorded_s']:.3f} s); {result['cache']['resident_before_pct']:.0f} % of the data were cached before"
    )
    for warning in result["warnings"]:
        say(f"warning: {warning}")
    say(f"99 % of the operations began within {lag:.0f} us of their time, an idle thread here within {jitter:.0f} us\n")
    return compare(source, open_capture(replay_path), Thresholds(similarity=LEAST_SIMILARITY))


def _run_on_ranks(source: Path, target: Path, output: Path, *, cold: bool) -> dict:
    """`dxt-replay run` under mpiexec where there is one, else in one process; its result."""
    from traces.errors import ReplayError

    launcher = _mpiexec()
    command = [*([launcher, "-n", str(RANKS)] if launcher else []), sys.executable, "-m", "replay.commands.main", "run"]
    command += [str(source.absolute()), "--target", str(target.absolute()), "-o", str(output.absolute()), "--json"]
    # Not from the present directory, from which Python imports first: a checkout holds the sources uncompiled.
    done = subprocess.run(
        [*command, *(["--cold"] if cold else [])], stdout=subprocess.PIPE, text=True, check=False, cwd=output.parent
    )
    if done.returncode:
        raise ReplayError(f"the replay ended with exit status {done.returncode}: see its message above")
    result: dict = json.loads(done.stdout)
    return result


def _mpiexec() -> str | None:
    """The launcher that belongs to this Python's environment (the mpich wheel's), else the system's."""
    return shutil.which("mpiexec", path=str(Path(sys.executable).parent)) or shutil.which("mpiexec")


@contextmanager
def _workspace(target: Path | None, *, keep: bool) -> Iterator[Path]:
    from traces.errors import TargetError

    try:
        folder = Path(tempfile.mkdtemp(prefix="dxt-replay-demo-", dir=target))
    except OSError as error:
        raise TargetError(f"cannot make a directory in {target or tempfile.gettempdir()}: {error.strerror}") from error
    try:
        yield folder
    finally:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
