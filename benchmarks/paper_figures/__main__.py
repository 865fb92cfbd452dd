"""`python -m benchmarks.paper_figures --figure 9a`: a figure of the paper, made anew."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.paper_figures.conditions import conditions_text
from benchmarks.paper_figures.measured import outcomes
from benchmarks.paper_figures.published import PRINTED, sweep_pages
from benchmarks.paper_figures.scaling import APPLICATIONS, NODES, RANKS_PER_NODE, scaling, scaling_table, write_plot
from benchmarks.paper_figures.sweeps import STORAGE, SWEEPS
from benchmarks.paper_figures.tables import sweep_table, verdict, verdict_lines

SCALED = ("14", "15")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the figures that were asked for."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.paper_figures", description=__doc__)
    parser.add_argument("--figure", action="append", choices=[*SWEEPS, *SCALED], help="repeatable; default: all")
    parser.add_argument("--storage", help="storage model instead of the figure's own: a shipped name or a file")
    parser.add_argument("--nodes", type=int, nargs="+", default=NODES, help="of Figures 14 and 15")
    parser.add_argument("--plot", type=Path, help="of Figures 14 and 15: an HTML file to write")
    parser.add_argument("--json", action="store_true", help="print one JSON object for each figure")
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory(prefix="dxt-replay-figures-") as folder:
        for figure in options.figure or [*SWEEPS, *SCALED]:
            if figure in SCALED:
                _print_scaling(figure, Path(folder), options)
            else:
                _print_sweep(figure, Path(folder), options.storage, as_json=options.json)
    return 0


def _print_sweep(figure: str, folder: Path, storage: str | None, *, as_json: bool) -> None:
    sweep, pages = SWEEPS[figure], sweep_pages().get(figure, ())
    found = outcomes(sweep, folder, storage)
    judged = verdict(sweep, found, pages)
    if as_json:
        print(json.dumps({**judged, "points": [dataclasses.asdict(each) for each in found]}))
        return
    print(f"\nFigure {figure}, {sweep.workload}, {sweep.ranks} ranks, on {Path(storage or sweep.storage).stem}")
    print(f"  {conditions_text(sweep)}")
    print(sweep_table(sweep, found, pages))
    print("\n".join(verdict_lines(judged)), flush=True)


def _print_scaling(figure: str, folder: Path, options: argparse.Namespace) -> None:
    storage, curves = options.storage or STORAGE, {}
    for name in (name for name, application in APPLICATIONS.items() if application.figure == figure):
        curves[name] = scaling(name, folder, storage, options.nodes)
        if not options.json:
            print(f"\nFigure {figure}, {name}, {RANKS_PER_NODE} ranks a node, on {Path(storage).stem}")
            print(scaling_table(curves[name]), flush=True)
    if options.json:
        points = {name: [dataclasses.asdict(each) for each in found] for name, found in curves.items()}
        print(json.dumps({"figure": figure, "printed": PRINTED[figure].text, "applications": points}))
    else:
        print(f"  printed: {PRINTED[figure].text}")
    if options.plot:
        write_plot(figure, curves, options.plot)


if __name__ == "__main__":
    sys.exit(main())
