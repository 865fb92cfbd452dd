"""Measures how much of the distance between a replay and its source is noise, and Darshan's counts in a replay.

Each capture is replayed three times at the recorded times: the first two replays are the noise floor that the third is
compared with. With Darshan's library a further replay runs under `dxt-replay record`, and what Darshan counted of each
file is held against the capture. The captures are the two that come with the package, or those of `--recordings DIR`,
in which each folder holds a `job.darshan` or a folder `logs`, and its profiles in `profile`.

    python -m benchmarks.replay_noise [--recordings DIR] [--captures A,B] [--target DIR] [--library libdarshan.so]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import dxt_replay

BUNDLED = ("imagenet", "cosmictagger")
SHOWN = {
    "similarity.cosine": "cosine of ten factors",
    "similarity.workload_cosine": "cosine of seven",
    "timing.elapsed_error_pct": "elapsed time, %",
    "timing.step_error_pct.p50": "time of a step, %",
    "storage.io_time_s": "I/O time, %",
    "distribution.latency.ks": "time of a request, largest gap",
    "curves.in_flight_pct": "in flight, %",
}
"""Measure -> head of its column, in which the replay's value stands before that of the two others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """The sources of a capture."""

    name: str
    logs: Path
    profiles: Path | tuple[Path, ...]


def recordings(folder: Path | None, names: Sequence[str]) -> Iterator[Recording]:
    """Those with these names, or all."""
    if folder is None:
        for sample in map(dxt_replay.sample, names or BUNDLED):
            yield Recording(name=sample.name, logs=sample.log, profiles=sample.profiles)
        return
    for name in names or sorted(path.name for path in folder.iterdir() if path.is_dir()):
        logs = next((logs for logs in (folder / name / "job.darshan", folder / name / "logs") if logs.exists()), None)
        if logs is not None:
            yield Recording(name=name, logs=logs, profiles=folder / name / "profile")


def noise(capture: Path, target: Path, work: Path) -> dxt_replay.Comparison:
    """The comparison of the third of three replays, with the difference of the first two as its floor."""
    replays = [work / f"{number}.capture" for number in range(3)]
    for replay in replays:
        dxt_replay.run(capture, target, replay)
    return dxt_replay.compare(capture, replays[2], floor=[(replays[0], replays[1])])


def witnessed(capture: Path, target: Path, work: Path, library: Path) -> dxt_replay.CountedComparison:
    """A replay at the recorded times, compared through Darshan's counts of it. Raises: CalledProcessError."""
    program = Path(sys.executable).with_name("dxt-replay")
    run = [program, "run", capture, "--target", target, "-o", work / "witnessed.capture", "-q"]
    record = [program, "record", "--library", library, "-o", work / "witness.capture", "-q", "--", *run]
    subprocess.run([str(word) for word in record], check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return dxt_replay.compare_log(capture, work / "witness.recording")


def noise_row(name: str, found: Mapping[str, Any]) -> str:
    """`found`: the output of `dxt-replay compare --floor --json`."""
    cells = []
    for measure in SHOWN:
        both = found["floor"]["measures"][measure]
        mark = " beyond" if both["within"] is False else ""
        sides = ("-" if both[side] is None else f"{both[side]:.4g}" for side in ("value", "floor"))
        cells.append(" / ".join(sides) + mark)
    relaxed = ", ".join(f"{each['limit']} {each['allowed']:.3g}" for each in found["floor"]["relaxed"])
    return f"| {name} | {' | '.join(cells)} | {relaxed or '-'} | {'passed' if found['passed'] else 'FAILED'} |"


def witness_row(name: str, found: Mapping[str, Any]) -> str:
    """`found`: the output of `dxt-replay compare CAPTURE REPLAY.darshan --json`."""
    requests, sizes = [], []
    for side in ("recorded", "expected", "counted"):
        totals = found[side]
        requests.append(f"{totals.get('reads', 0) + totals.get('writes', 0):,}")
        sizes.append(f"{totals.get('bytes_read', 0) + totals.get('bytes_written', 0):,}")
    files = f"{found['equal_files']} of {found['files']}"
    return f"| {name} | {files} | {' / '.join(requests)} | {' / '.join(sizes)} | {found['verdict']} |"


def main() -> None:
    """Print both tables as Markdown, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--captures", default="")
    parser.add_argument("--target", type=Path)
    parser.add_argument("--library", type=Path)
    given = parser.parse_args()
    print(f"| capture | {' | '.join(SHOWN.values())} | limits relaxed to | verdict |")
    print("|" + "---|" * (len(SHOWN) + 3))
    witnesses = []
    with tempfile.TemporaryDirectory(dir=given.target) as folder:
        for each in recordings(given.recordings, [name for name in given.captures.split(",") if name]):
            work = Path(folder) / each.name
            work.mkdir()
            capture = work / "run.capture"
            dxt_replay.merge(each.logs, capture, profiles=each.profiles)
            dxt_replay.stage(capture, work / "target")
            print(noise_row(each.name, noise(capture, work / "target", work).as_json()), flush=True)
            if given.library is not None:
                found = witnessed(capture, work / "target", work, given.library)
                witnesses.append(witness_row(each.name, found.as_json()))
            dxt_replay.unstage(work / "target")
    if witnesses:
        print("\n| capture | files equal | reads and writes | bytes | verdict |\n|---|---|---|---|---|")
        print("\n".join(witnesses))


if __name__ == "__main__":
    main()
