"""`dxt-replay regress`: test whether one file system is slower than another."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from dxt_replay.replay.commands.family_options import family_options
from dxt_replay.replay.commands.shared_options import (
    capture_argument,
    details_option,
    force_option,
    json_option,
    part_options,
)
from dxt_replay.replay.options.choices import PACE_HELP, RegressChoices, RunChoices
from dxt_replay.replay.options.option import Option
from dxt_replay.traces.errors import UsageError
from dxt_replay.traces.paces import PACE_CHOICES

if TYPE_CHECKING:
    from collections.abc import Sequence

    from dxt_replay.replay.interface.captures import NamedPart


_PACE = Option(f"{PACE_HELP}  [default: steps if the capture has training steps, else think]", choices=PACE_CHOICES)


@click.command()
@capture_argument("capture")
@click.argument("target", required=False)
@click.option("--baseline", metavar="DIR", help="The target as it was: a directory, or an s3:// URL.")
@click.option(
    "--candidate",
    metavar="DIR",
    help="The target to judge; the same target twice, or TARGET alone, measures the noise.",
)
@family_options(RegressChoices, "against", "record", "repeats", "threshold_pct")
@click.option("--fail-inconclusive", is_flag=True, help="Exit 1 also when the verdict is inconclusive.")
@family_options(RunChoices, pace=_PACE)
@family_options(RegressChoices, "cold", "baseline_maps", "candidate_maps")
@part_options
@family_options(RegressChoices, "output")
@click.option(
    "--report",
    "reports",
    type=click.Path(path_type=Path, dir_okay=False),
    multiple=True,
    metavar="FILE",
    help="Write verdict and figures to FILE: JUnit XML (.xml), Markdown (.md), such as for a pull request, or an HTML "
    "page with all runs (.html); repeatable.",
)
@force_option
@details_option
@json_option
def command(
    capture: NamedPart,
    target: str | None,
    baseline: str | None,
    candidate: str | None,
    against: Path | None,
    repeats: int,
    reports: tuple[Path, ...],
    fail_inconclusive: bool,
    force: bool,
    **choices: Any,
) -> None:
    """Replay a capture (or a .darshan log) on two file systems or object stores in turn, and judge
    whether one is slower.

    Twins that are absent are staged. The two sides run in pairs, in random order within each pair, after a run of each
    that does not count. The ratio of their times and its exact interval decide:

    regression: the whole interval is above 1, and the ratio reaches --threshold;

    no change: the interval is within the threshold, and the noise is so small that a change would have shown;

    inconclusive: anything else. The number of pairs that would be enough is printed.

    With --against the runs of a record replace the baseline. That halves the runs, but everything that changed between
    the two sessions is part of the change. Under `mpiexec -n R` the processes share the recorded ranks in every run.

    Exits 1 for a regression or if stopped, with --fail-inconclusive also for inconclusive, else 0.
    """
    import dxt_replay
    from dxt_replay.replay.commands.answer import answer
    from dxt_replay.replay.commands.processes import ending_together
    from dxt_replay.replay.commands.progress import byte_progress, experiment_progress
    from dxt_replay.replay.ranks.mpi import connect, first_does
    from dxt_replay.replay.regress.experiment import WARM_UPS
    from dxt_replay.replay.regress.reports import report
    from dxt_replay.replay.regress.sections import regression_sections
    from dxt_replay.replay.regress.statistics import Rule
    from dxt_replay.traces.output import new_file

    sides = _sides(target, baseline, candidate, against)
    comm = connect()
    with (
        ending_together(comm),
        comm.watched(),
        byte_progress("staging") as staging,
        experiment_progress(comm.rank == 0, (1 if against else 2) * (repeats + WARM_UPS)) as running,
    ):

        def checked() -> None:
            Rule(threshold_pct=choices["threshold_pct"])
            _check(reports, repeats, against, force=force)

        first_does(comm, checked)
        result = dxt_replay.regress(
            capture,
            *sides,
            against=against,
            repeats=repeats,
            force=force,
            on_staging=staging,
            on_progress=running,
            comm=comm,
            **choices,
        )
    if comm.rank:
        return
    for path in dict.fromkeys(reports):
        with new_file(path, force=force) as stream:
            stream.write(report(path.suffix, result, inconclusive_fails=fail_inconclusive))
    answer(result, regression_sections)
    if result.fails(inconclusive_fails=fail_inconclusive):
        raise SystemExit(1)


def _sides(
    target: str | None, baseline: str | None, candidate: str | None, against: Path | None
) -> tuple[str | None, str]:
    """Baseline, which is None against a record, and candidate. Raises: UsageError."""
    if target is not None and (baseline or candidate):
        raise UsageError(f"{target} is given beside --baseline or --candidate: give TARGET alone, or both options")
    if against is not None:
        if baseline is not None:
            raise UsageError("--against takes the place of --baseline: give one of them")
        if (found := target or candidate) is not None:
            return None, found
        raise UsageError("--against compares a target with a record: give the target after the capture")
    if target is not None:
        return target, target
    if baseline is None or candidate is None:
        missing = "--baseline" if baseline is None else "--candidate"
        raise UsageError(f"{missing} is missing: give --baseline DIR and --candidate DIR, or TARGET --against RECORD")
    return baseline, candidate


def _check(reports: Sequence[Path], repeats: int, against: Path | None, *, force: bool) -> None:
    """Refuse the experiment before its first run.

    Raises: TargetError; UsageError for a report of another kind, a record that cannot be read, and too few runs for a
    verdict.
    """
    from dxt_replay.replay.regress.record import read_record
    from dxt_replay.replay.regress.reports import SUFFIXES
    from dxt_replay.replay.regress.statistics import ALPHA, MOST_RUNS, least_pairs, least_runs
    from dxt_replay.traces.output import check_output

    for path in reports:
        if path.suffix not in SUFFIXES:
            raise UsageError(f"--report {path}: give a name that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}")
        check_output(path, force=force)
    least: int | None
    if against is None:
        least, counted = least_pairs(), "pairs"
    else:
        least, counted = least_runs(len(read_record(against).counted_runs())), "runs against this record"
    if least is not None and repeats >= least:
        return
    few = f"at least {least or MOST_RUNS} {counted} are needed at alpha {ALPHA:g}"
    raise UsageError(
        f"--repeats {repeats} can never find a regression: {few}; give --repeats {least or MOST_RUNS} or more"
    )
