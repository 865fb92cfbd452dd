"""`dxt-replay regress`: whether an application takes longer on one file system than on another."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from replay.commands.options import capture_argument, force_option, is_log, json_option, part_options
from replay.commands.replay_options import pacing_of, replay_options, run_options_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from replay.regression.experiment import Experiment
    from replay.run.options import RunOptions
    from traces.part import Part
    from traces.schema import Source
    from traces.store.reader import Capture


@click.command()
@capture_argument("capture")
@click.option("--baseline", required=True, type=click.Path(path_type=Path), metavar="DIR", help="The target as it was.")
@click.option(
    "--candidate",
    required=True,
    type=click.Path(path_type=Path),
    metavar="DIR",
    help="The target in question; the same directory twice measures the noise.",
)
@click.option(
    "--repeats",
    type=click.IntRange(1, 1000),
    default=10,
    show_default=True,
    metavar="N",
    help="Pairs of runs, a baseline and a candidate each.",
)
@click.option(
    "--warmup", type=click.IntRange(0), default=1, show_default=True, metavar="N", help="Runs a side that do not count."
)
@click.option(
    "--threshold", type=float, default=5.0, show_default=True, metavar="PCT", help="The smallest change that matters."
)
@click.option("--alpha", type=float, default=0.05, show_default=True, help="Probability of a false alarm.")
@click.option(
    "--seed", type=click.IntRange(0), help="Seed of the random order within pairs.  [default: a new one, printed]"
)
@click.option(
    "--metric",
    metavar="NAME",
    help="What decides.  [default: elapsed_s; total_s where the data are loaded before the first step; "
    "latency_mean_us under --pace timed]",
)
@click.option("--fail-inconclusive", is_flag=True, help="Exit 1 without a verdict too.")
@click.option(
    "--stage/--no-stage", "staging", default=True, show_default=True, help="Stage the twin where it is absent."
)
@replay_options(pace=None)
@click.option(
    "--cold/--warm",
    default=True,
    show_default=True,
    help="Whether the twin's pages are dropped before each run; what is there is measured before each in any case.",
)
@click.option("--baseline-map", multiple=True, metavar="PREFIX=DIR", help="Real data on the baseline; repeatable.")
@click.option("--candidate-map", multiple=True, metavar="PREFIX=DIR", help="Real data on the candidate; repeatable.")
@part_options
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Keep the replays there.  [default: deleted]",
)
@click.option("--junit", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE", help="Write JUnit XML.")
@click.option(
    "--markdown",
    type=click.Path(path_type=Path, dir_okay=False),
    metavar="FILE",
    help="Write the verdict and the figures as Markdown, such as for a pull request.",
)
@force_option
@json_option
def command(
    capture: Path,
    chosen_part: Callable[[], Part],
    staging: bool,
    junit: Path | None,
    markdown: Path | None,
    fail_inconclusive: bool,
    force: bool,
    as_json: bool,
    **chosen: Any,
) -> None:
    """Replay a capture (or a .darshan log) on two file systems in turn, and judge whether one is slower.

    Pairs of runs, in random order within each pair; the ratio of their times with its exact interval decides. A verdict
    of regression needs the whole interval above 1 and --threshold reached, one of no change the interval within the
    threshold and so little noise that a change would have shown; anything else is inconclusive, and how many pairs
    would do is said. Under `mpiexec -n R` the processes share the recorded ranks in every run.

    Exits 1 for a regression (and where it was stopped), with --fail-inconclusive without a verdict too; else 0.
    """
    from replay.commands.options import opened
    from replay.commands.output import print_json
    from replay.commands.processes import ending_together
    from replay.commands.progress import byte_progress, experiment_progress
    from replay.ranks.comm import connect, first_does, together
    from replay.ranks.stopping import unwind_on_signals
    from replay.regression.experiment import check_outputs, plan_staging, run_experiment, stage_all
    from replay.regression.regression_sections import regression_markdown, regression_sections
    from replay.regression.verdict import Verdict
    from replay.show.terminal import print_sections
    from traces.output import check_output, new_file
    from traces.store.part_capture import part_of

    comm = connect()
    with ExitStack() as stack:
        stack.enter_context(comm.watched())
        stack.enter_context(ending_together(comm))
        stack.enter_context(unwind_on_signals())
        part = together(comm, chosen_part)
        whole = stack.enter_context(opened(capture, comm, chosen["output"]))
        source = together(comm, lambda: part_of(whole, part))
        sources = whole.info.sources if is_log(capture) else ()
        experiment = first_does(comm, lambda: _experiment(source, sources, {**chosen, "force": force}))

        def prepare() -> None:
            check_outputs(experiment)
            for output in (junit, markdown):
                if output is not None:
                    check_output(output, force=force)
            _warn_of_too_few(experiment)
            if staging:
                plans = plan_staging(source, experiment)
                with byte_progress("staging", sum(plan.bytes_to_write for plan in plans)) as progress:
                    stage_all(plans, progress)

        first_does(comm, prepare)
        runs = 2 * (experiment.repeats + experiment.warmup)
        report = stack.enter_context(experiment_progress(comm.rank == 0, runs))
        result = run_experiment(source, experiment, comm, report)
    if result is None:
        return
    document = result.as_json()
    if junit is not None:
        _write_junit(junit, document, inconclusive_fails=fail_inconclusive, force=force)
    if markdown is not None:
        with new_file(markdown, force=force) as stream:
            stream.write(regression_markdown(document).encode("utf-8", "replace"))
    if as_json:
        print_json(document)
    else:
        print_sections(regression_sections(document))
    failing = {Verdict.REGRESSION, Verdict.INCONCLUSIVE} if fail_inconclusive else {Verdict.REGRESSION}
    if result.verdict in failing or document["stopped"]:
        raise SystemExit(1)


def _experiment(source: Capture, sources: tuple[Source, ...], chosen: Mapping[str, Any]) -> Experiment:
    """From the options of the command line. `sources`: see `RunOptions`. Raises: UsageError."""
    import secrets

    from replay.regression.experiment import Experiment, default_pace
    from replay.regression.verdict import Rule

    pacing = pacing_of(chosen, chosen["pace"] or default_pace(source).value)

    def side(name: str) -> RunOptions:
        maps = chosen[f"{name}_map"]
        return run_options_of(chosen, pacing, source, target=chosen[name], maps=maps, sources=sources)

    return Experiment(
        baseline=side("baseline"),
        candidate=side("candidate"),
        repeats=chosen["repeats"],
        warmup=chosen["warmup"],
        seed=secrets.randbits(32) if chosen["seed"] is None else chosen["seed"],
        rule=Rule(threshold_pct=chosen["threshold"], alpha=chosen["alpha"]),
        metric=chosen["metric"],
        keep=chosen["output"],
    )


def _warn_of_too_few(experiment: Experiment) -> None:
    from replay.commands.session import warn
    from replay.regression.signed_rank import least_pairs

    least = least_pairs(experiment.rule.alpha)
    if experiment.repeats < least:
        warn(
            f"fewer than {least} pairs can show nothing at alpha {experiment.rule.alpha:g}: the verdict will be "
            f"inconclusive; --repeats {least} is the least"
        )


def _write_junit(junit: Path, document: Mapping[str, Any], *, inconclusive_fails: bool, force: bool) -> None:
    from replay.regression.junit import junit_document
    from traces.output import new_file

    name = f"{document['capture']}: {document['candidate']} against {document['baseline']}"
    with new_file(junit, force=force) as stream:
        stream.write(junit_document(document, name=name, inconclusive_fails=inconclusive_fails))
