"""What the commands cost at scale: one table, in half an hour on two idle processors.

    python -m benchmarks.scale_table [--size 0.01] [--inputs job log] [--json FILE]

All inputs are written here, at three sizes each. Printed are the CPU seconds of all processes of a command at the
largest size, whether they grow linearly, and the peak of the processes' memory together; then what a second process
gains, and whether the output of one process and of two has the same SHA-256. Wall times need an idle machine, CPU
seconds do not.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import dxt_replay
from benchmarks.large_job import RANKS, even_capture, files_capture, mixed_capture, write_large_log
from benchmarks.measuring import measured_command
from dxt_replay.traces.units import format_bytes, format_count

OPERATIONS = (1_000_000, 3_000_000, 10_000_000)
TMPFS = Path("/dev/shm")
PROGRAM = (sys.executable, "-m", "dxt_replay")
CAPTURE, LOG, MADE = "{folder}/job.capture", "{folder}/job.darshan", "{folder}/made"


def _log(folder: Path, operations: int, ranks: int = RANKS) -> int:
    return write_large_log(folder / "job.darshan", max(operations, 4 * ranks), ranks)


def _one_rank(folder: Path, operations: int) -> int:
    _log(folder, operations, 1)
    made = even_capture(folder / "job.capture", 1, operations, 2_000)
    (folder / "twin").mkdir()
    dxt_replay.stage(folder / "job.capture", folder / "twin", sparse=True)
    return made


def _small(folder: Path, operations: int) -> int:
    made = _log(folder, operations)
    dxt_replay.merge(folder / "job.darshan", folder / "job.capture")
    return made


def _archive(folder: Path, jobs: int) -> int:
    for number in range(jobs):
        place = folder / "logs" / f"{number:05d}"
        place.mkdir(parents=True)
        write_large_log(place / "job.darshan", 4_000, 4)
    return jobs


def _training(folder: Path, files: int) -> int:
    changes = {"train.epochs": 1, "dataset.num_files_train": files}
    return dxt_replay.generate("resnet50_h100", 16, folder / "job.capture", overrides=changes).generated.operations


def _simulated(folder: Path, ranks: int) -> int:
    sample = dxt_replay.sample("imagenet")
    dxt_replay.merge(sample.log, folder / "job.capture", profiles=sample.profiles)
    return ranks


class Input(NamedTuple):
    """What rows work on. make: writes it for a size into an empty folder, and returns the number of units. least: the
    smallest size that makes sense."""

    make: Callable[[Path, int], int]
    unit: str
    sizes: tuple[int, ...] = OPERATIONS
    least: int = 100


INPUTS = {
    "job": Input(lambda folder, size: mixed_capture(folder / "job.capture", size), "operation"),
    "log": Input(_log, "operation"),
    "one rank": Input(_one_rank, "operation"),
    "open": Input(lambda folder, size: even_capture(folder / "job.capture", size, 10, 10_000) // 10, "rank",
                  (10_000, 30_000, 100_000)),
    "small": Input(_small, "operation", (100, 1_000, 10_000)),
    "archive": Input(_archive, "log", (10, 30, 100), 2),
    "files": Input(lambda folder, size: files_capture(folder / "job.capture", size, 16 << 10), "file",
                   (3_000, 10_000, 30_000), 10),
    "training": Input(_training, "operation", (1_824, 5_472, 18_240), 16),
    "simulated": Input(_simulated, "rank", (512, 2_048, 8_192), 4),
}  # fmt: skip


class Row(NamedTuple):
    """words: of dxt-replay, or of the program `sh`. output: what it writes, removed before each run; without it the
    output is what it prints. shared: whether more processes can do it. peer: the row that does the least of it."""

    input: str
    words: Sequence[str]
    output: str = ""
    shared: bool = False
    peer: str = ""


def _of_capture(source: str, *words: str, suffix: str = "", shared: bool = False) -> Row:
    written = ("-o", f"{MADE}{suffix}") if suffix else ("--json",)
    return Row(source, (words[0], CAPTURE, *words[1:], *written), f"{MADE}{suffix}" if suffix else "", shared)


def _merge(source: str) -> Row:
    return Row(source, ("merge", LOG, "-o", f"{MADE}.capture"), f"{MADE}.capture")


_RUN = ("run", CAPTURE, "--target", "{folder}/twin", "-o", f"{MADE}.capture", "--pace", "none", "--json")
_OPEN = "import sys, dxt_replay; dxt_replay.open_capture(sys.argv[1])"
_EACH = ("merge", "--each", "{folder}/logs", "-o", MADE, "--json")
ROWS = {
    "summary": _of_capture("job", "summary", shared=True),
    "findings": _of_capture("job", "summary", "--show", "findings", shared=True),
    "report": _of_capture("job", "report", suffix=".html", shared=True),
    "compare": _of_capture("job", "compare", CAPTURE, "--different-runs", shared=True),
    "export csv": _of_capture("job", "export", "--to", "csv", suffix=".csv"),
    "export fio": _of_capture("job", "export", "--to", "fio", "--target", "{folder}", suffix=".fio"),
    "export chrome": _of_capture("job", "export", "--to", "chrome", suffix=".json.gz"),
    "export darshan": _of_capture("job", "export", "--to", "darshan", suffix=".darshan"),
    "merge": _merge("log"),
    "merge, one rank": _merge("one rank"),
    "run, one rank": Row("one rank", (*_RUN, "--api", "null"), f"{MADE}.capture"),
    "open a capture": Row("open", ("sh", "-c", f"{sys.executable} -c '{_OPEN}' {CAPTURE}")),
    "merge, small log": _merge("small"),
    "summary, small": _of_capture("small", "summary"),
    "report, small": _of_capture("small", "report", suffix=".html"),
    "merge --each": Row("archive", _EACH, MADE, shared=True),
    "summary of logs": Row("archive", ("summary", "{folder}/logs", "--json"), shared=True),
    "stage": Row("files", ("stage", CAPTURE, "--target", "{folder}/twin"), "{folder}/twin", peer="cp -r"),
    "cp -r": Row("files", ("sh", "-c", "cp -r {folder}/twin {folder}/copy && sync -f {folder}/copy"), "{folder}/copy"),
    "run, many files": Row("files", _RUN, f"{MADE}.capture", peer="cp -r"),
    "transform": _of_capture("training", "transform", "--compute-speed", "2", suffix=".capture"),
    "simulate": _of_capture("simulated", "simulate", "--storage", "theta_lustre", "--ranks", "{size}"),
}


def measure(names: Sequence[str], factor: float, folder: Path | None) -> Iterator[dict[str, Any]]:
    """The runs of all rows of these inputs: row, unit, units, cpu_s, wall_s, peak_bytes; where they are shared also
    those of two processes, and whether the outputs are the `same`. Sizes are multiplied by `factor`."""
    for name in names:
        source = INPUTS[name]
        home = TMPFS if folder is None and name == "files" and TMPFS.is_dir() else folder
        for size in sorted({max(round(size * factor), source.least) for size in source.sizes}):
            with tempfile.TemporaryDirectory(prefix="dxt-replay-scale-", dir=home) as place:
                units = source.make(Path(place), size)
                for title, row in ROWS.items():
                    if row.input == name:
                        run = _run(row, place, size, ("--workers", "1") if row.shared else ())
                        if row.shared:
                            two = _run(row, place, size, ("--workers", "2"))
                            run |= {"two": two, "same": run["sha256"] == two["sha256"]}
                        yield {"row": title, "unit": source.unit, "units": units, **run}


def _run(row: Row, folder: str, size: int, sharing: Sequence[str]) -> dict[str, Any]:
    words = [word.replace("{folder}", folder).replace("{size}", str(size)) for word in row.words]
    output = Path(row.output.replace("{folder}", folder)) if row.output else None
    if output is not None:
        shutil.rmtree(output, ignore_errors=True)
        output.unlink(missing_ok=True)
        if row.words[0] == "stage":
            output.mkdir()
    done = measured_command(words if words[0] == "sh" else [*PROGRAM, *words, *sharing])
    figures = {"cpu_s": done.cpu_s, "wall_s": done.wall_s, "peak_bytes": done.peak_bytes}
    return {**figures, "sha256": _digest(output, done.printed) if row.shared else None}


def _digest(output: Path | None, printed: bytes) -> str:
    """SHA-256 of a file, of all files of a folder by name, or of what was printed."""
    found = hashlib.sha256(b"" if output else printed)
    for path in sorted(path for path in output.rglob("*") if path.is_file()) if output and output.is_dir() else ():
        found.update(str(path.relative_to(output)).encode() + path.read_bytes())  # type: ignore[arg-type]
    if output is not None and output.is_file():
        found.update(output.read_bytes())
    return found.hexdigest()


HEAD = "| row | size | CPU s | growth | peak memory | peer | 2 to one, CPU | wall | same |\n" + "|---" * 9 + "|"


def table(runs: Sequence[dict[str, Any]]) -> str:
    """The rows at their largest size. growth: CPU time of a unit to that at the middle size; peer: CPU time of a unit
    of the peer to that of the row."""
    by_row: dict[str, list[dict[str, Any]]] = {}
    for run in runs:
        by_row.setdefault(run["row"], []).append(run)
    cost = {name: [run["cpu_s"] / run["units"] for run in found] for name, found in by_row.items()}
    lines = [HEAD]
    for name, found in by_row.items():
        last, peer = found[-1], ROWS[name].peer
        cells = [name, f"{format_count(last['units'])} {last['unit']}s", f"{last['cpu_s']:.2f}"]
        cells += [f"{cost[name][-1] / cost[name][-2]:.2f}" if len(found) > 1 else "", format_bytes(last["peak_bytes"])]
        cells += [f"{peer}: {cost[peer][-1] / cost[name][-1]:.2f}" if peer in cost else ""]
        if two := last.get("two"):
            cells += [f"{last[key] / two[key]:.2f}" for key in ("cpu_s", "wall_s")] + ["yes" if last["same"] else "NO"]
        lines.append(f"| {' | '.join([*cells, *[''] * (9 - len(cells))])} |")
    return "\n".join(lines)


def main(argv: Sequence[str] | None = None) -> int:
    """Print the table; 1 where outputs differ."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=float, default=1.0, metavar="FACTOR", help="multiplies all sizes, such as 0.01")
    parser.add_argument("--inputs", nargs="+", choices=INPUTS, default=tuple(INPUTS), help="rows of these inputs only")
    parser.add_argument("--folder", type=Path, help="where there is room")
    parser.add_argument("--json", type=Path, help="write all runs to this file")
    given = parser.parse_args(argv)
    runs = []
    for run in measure(given.inputs, given.size, given.folder):
        runs.append(run)
        print(f"{run['row']}, {run['units']:,} {run['unit']}s: {run['cpu_s']:.1f} s", file=sys.stderr)
        if given.json:
            given.json.parent.mkdir(parents=True, exist_ok=True)
            given.json.write_text(json.dumps(runs, indent=1) + "\n", encoding="utf-8")
    print(table(runs))
    return 0 if all(run.get("same", True) for run in runs) else 1


if __name__ == "__main__":
    sys.exit(main())
