"""What the commands cost at scale: one table, in half an hour on two idle processors.

    python -m benchmarks.scale_table [--size 0.01] [--inputs job log] [--before OLD.json] [--json NEW.json]
    python -m benchmarks.scale_table --show NEW.json

The second command prints the short table of docs/scale.md; with `--all` it prints what the first one prints.
All inputs are written here, at three sizes each. Printed are the CPU seconds of all processes of a command, whether
they grow linearly, and the peak of the processes' memory together; then what more processes gain, and whether the
output of one process, of two, of MPI and of Dask has the same SHA-256. Wall times need an idle machine, CPU seconds
do not. `benchmarks.cost_model` makes a model of the cost out of the JSON file.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.scale_table.inputs import INPUTS, archive_of
from benchmarks.scale_table.measuring import WORKERS, measured
from benchmarks.scale_table.rows import ROWS, SHORT
from dxt_replay.traces.units import format_bytes, format_count
from dxt_replay.traces.version import VERSION
from dxt_replay.traces.workers import processors

Run = dict[str, Any]


def measure(
    names: Sequence[str] = tuple(INPUTS),
    factor: float = 1.0,
    folder: Path | None = None,
    *,
    logs: Path | None = None,
    kept: Path | None = None,
) -> dict[str, Any]:
    """`runs`, and when and on what machine they were made.

    logs: a folder whose logs are the archive. kept: a file that has the result so far after each run.
    """
    inputs = {name: INPUTS[name] for name in INPUTS if name in names}
    if logs is not None and "archive" in inputs:
        inputs["archive"] = archive_of(logs)
    began, runs = time.monotonic(), list[Run]()
    result = {
        "version": VERSION,
        "date": datetime.now(timezone.utc).isoformat(timespec="minutes"),
        "processors": processors(),
        "runs": runs,
    }
    for run in measured(inputs, factor, folder):
        runs.append(run)
        result |= {"load": max(each["load"] for each in runs), "seconds": time.monotonic() - began}
        print(f"{run['row']}, {run['units']:,} {run['unit']}s, {run['way']}: {run['cpu_s']:.1f} s", file=sys.stderr)
        if kept is not None:
            kept.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def table(result: dict[str, Any], before: dict[str, Any] | None = None) -> str:
    """The result as Markdown: a line for each row; then a line for each row whose work can be shared."""
    alone = _by_row(result, "one")
    old = _by_row(before, "one") if before else {}
    heads = ["row", "command", "sizes", *(["CPU s, before"] if before else []), "CPU s", "growth", "wall s"]
    heads += ["peak memory", "peer's CPU time; other figures"]
    lines = [
        _summary(result),
        "",
        *_head(heads),
    ]
    for name, runs in alone.items():
        command = runs[-1].get("command")
        cells = [name, f"`{command}`" if command else "", f"{_joined(runs, 'units', format_count)} {runs[-1]['unit']}s"]
        cells += [_joined(old.get(name, []), "cpu_s", "{:.2f}".format)] if before else []
        cells += [_joined(runs, "cpu_s", "{:.2f}".format), _growth(runs), _joined(runs, "wall_s", "{:.1f}".format)]
        lines.append(_line([*cells, _joined(runs, "peak_bytes", format_bytes), _others(name, alone)]))
    shared = [name for name, runs in _by_row(result, "pickled").items() if runs[-1]["pieces"]]
    heads = ["row", f"{WORKERS} to one by CPU", "wall", "CPU s, one", str(WORKERS), "MPI", "Dask"]
    heads += ["first process, ns a unit", "returned, bytes a unit", "peak memory, one", str(WORKERS), "MPI", "Dask"]
    return "\n".join([*lines, "", *_head([*heads, "same bytes"]), *(_shared_line(name, result) for name in shared)])


def short_table(result: dict[str, Any]) -> str:
    """The table of docs/scale.md: the rows of SHORT at their largest size."""
    alone, several, pickled = (_by_row(result, way) for way in ("one", "processes", "pickled"))
    heads = ["row", "size", "CPU s", "growth", "peak memory", "peer", f"{WORKERS} to one, CPU", "wall"]
    lines = [_summary(result), "", *_head([*heads, "first process, ns a unit", "returned, B a unit"])]
    for name in (name for name in SHORT if name in alone):
        one = alone[name][-1]
        cells = [name, f"{format_count(one['units'])} {one['unit']}s", f"{one['cpu_s']:.2f}", _growth(alone[name])]
        cells += [format_bytes(one["peak_bytes"]), _peer(name, alone)]
        if name in several:
            two = several[name][-1]
            cells += [f"{one['cpu_s'] / two['alone_s']:.2f}", f"{one['wall_s'] / two['wall_s']:.2f}"]
            cells += _handed_in(one, pickled[name][-1])
        else:
            cells += [""] * 4
        lines.append(_line(cells))
    return "\n".join([*lines, "", f"Outputs of one process, processes, MPI and Dask: {_sameness(result)}."])


def _sameness(result: dict[str, Any]) -> str:
    return "the same SHA-256 in every row" if is_same(result) else "NOT the same"


def _summary(result: dict[str, Any]) -> str:
    """What was measured when, a sentence."""
    return (
        f"dxt-replay {result['version']}, {result['date']}, {result['processors']} processors, load up to "
        f"{result['load']:.0f}, {result['seconds'] / 60:.0f} minutes."
    )


def _handed_in(one: Run, counted: Run) -> list[str]:
    """CPU time of what only the first process does, and bytes of all results, of a unit."""
    first_ns = 1e9 * (counted["cpu_s"] - counted["pieces_s"]) / one["units"]
    return [f"{first_ns:,.0f}", f"{counted['returned_bytes'] / one['units']:.3g}"]


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), "|---" * len(cells) + "|"]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _shared_line(name: str, result: dict[str, Any]) -> str:
    """The line of one row at its largest size."""
    found = {way: runs[-1] for way in ("one", "processes", "MPI", "Dask") if (runs := _by_row(result, way).get(name))}
    one, several = found["one"], found["processes"]
    counted = _by_row(result, "pickled")[name][-1]
    cells = {key: [found[way][key] if way in found else None for way in ("one", "processes", "MPI", "Dask")]
             for key in ("cpu_s", "peak_bytes")}  # fmt: skip
    cpu = " | ".join("" if value is None else f"{value:.1f}" for value in cells["cpu_s"])
    peaks = " | ".join("" if value is None else format_bytes(value) for value in cells["peak_bytes"])
    digests = {run["sha256"] for run in found.values()}
    gain, wall = one["cpu_s"] / several["alone_s"], one["wall_s"] / several["wall_s"]
    first, returned = _handed_in(one, counted)
    same = f"{'yes' if len(digests) == 1 else 'NO'}: {', '.join(found)}"
    return f"| {name} | {gain:.2f} | {wall:.2f} | {cpu} | {first} | {returned} | {peaks} | {same} |"


def _by_row(result: dict[str, Any], way: str) -> dict[str, list[Run]]:
    """The runs of each row in one way, by size."""
    found: dict[str, list[Run]] = {}
    for row in ROWS:
        runs = [run for run in result["runs"] if run["row"] == row.name and run["way"] == way]
        if runs:
            found[row.name] = sorted(runs, key=lambda run: run["size"])
    return found


def _joined(runs: Sequence[Run], key: str, text: Callable[[Any], str]) -> str:
    return " / ".join(text(run[key]) for run in runs)


def _growth(runs: Sequence[Run]) -> str:
    """CPU time of a unit of the largest size to that of the middle one: at most 1 if the cost is linear."""
    if len({run["units"] for run in runs}) < 3:
        return ""
    middle, high = (run["cpu_s"] / run["units"] for run in runs[1:])
    return f"{high / middle:.2f}" if middle else ""


def _others(name: str, alone: dict[str, list[Run]]) -> str:
    """What `_peer` says, and the row's own figures."""
    found = [text for text in (_peer(name, alone),) if text]
    figures = [run["figure"] for run in alone[name] if run.get("figure")]
    keys = figures[0] if figures else ()
    found += [f"{key}: {' / '.join(f'{figure[key]:.3g}' for figure in figures)}" for key in keys]
    return "; ".join(found)


def _peer(name: str, alone: dict[str, list[Run]]) -> str:
    """CPU time of a unit of the peer divided by that of the row, at their largest sizes."""
    peer = next(row.peer for row in ROWS if row.name == name)
    if peer not in alone:
        return ""
    own, other = (found[-1]["cpu_s"] / found[-1]["units"] for found in (alone[name], alone[peer]))
    return f"{peer}: {other / own:.2f}"


def main(argv: list[str] | None = None) -> int:
    """Print the table; 1 where outputs differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1.0, metavar="FACTOR", help="multiplies all sizes, such as 0.01")
    parser.add_argument("--inputs", nargs="+", choices=INPUTS, default=tuple(INPUTS), help="rows of these inputs only")
    parser.add_argument("--logs", type=Path, help="folder whose Darshan logs are the archive; 1, 3 and 10 copies")
    parser.add_argument("--folder", type=Path, help="where there is room")
    parser.add_argument("--before", type=Path, help="JSON file of an earlier run")
    parser.add_argument("--json", type=Path, help="write all runs to this file")
    parser.add_argument("--show", type=Path, help="measure nothing: print the short table of this JSON file")
    parser.add_argument("--all", action="store_true", help="with --show: print the whole table")
    arguments = parser.parse_args(argv)
    if arguments.show:
        result = json.loads(arguments.show.read_text(encoding="utf-8"))
    else:
        if arguments.json:
            arguments.json.parent.mkdir(parents=True, exist_ok=True)
        result = measure(arguments.inputs, arguments.size, arguments.folder, logs=arguments.logs, kept=arguments.json)
    if arguments.show and not arguments.all:
        print(short_table(result))
    else:
        print(table(result, json.loads(arguments.before.read_text(encoding="utf-8")) if arguments.before else None))
    return 0 if is_same(result) else 1


def is_same(result: dict[str, Any]) -> bool:
    """Whether the output of each row is the same in all ways."""
    outputs: dict[tuple[str, int], set[str]] = {}
    for run in result["runs"]:
        if run.get("sha256"):
            outputs.setdefault((run["row"], run["size"]), set()).add(run["sha256"])
    return all(len(each) == 1 for each in outputs.values())


if __name__ == "__main__":
    os.environ.setdefault("DASK_DISTRIBUTED__LOGGING__DISTRIBUTED", "error")
    sys.exit(main())
