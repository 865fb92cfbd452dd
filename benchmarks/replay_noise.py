"""Measures how much of the distance between a replay and its source is noise.

Each capture is replayed three times at the recorded times: the first two replays are the noise floor that the third is
compared with. The captures are the two that come with the package, or those of `--recordings DIR`, in which each
folder holds a `job.darshan` or a folder `logs`, and its profiles in `profile`.

    python -m benchmarks.replay_noise [--recordings DIR] [--captures A,B] [--target DIR]
"""

from __future__ import annotations

import argparse
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


def main() -> None:
    """Print the table as Markdown, a row as soon as it is known."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--recordings", type=Path)
    parser.add_argument("--captures", default="")
    parser.add_argument("--target", type=Path)
    given = parser.parse_args()
    print(f"| capture | {' | '.join(SHOWN.values())} | limits relaxed to | verdict |")
    print("|" + "---|" * (len(SHOWN) + 3))
    with tempfile.TemporaryDirectory(dir=given.target) as folder:
        for each in recordings(given.recordings, [name for name in given.captures.split(",") if name]):
            work = Path(folder) / each.name
            work.mkdir()
            capture = work / "run.capture"
            dxt_replay.merge(each.logs, capture, profiles=each.profiles)
            (work / "target").mkdir()
            dxt_replay.stage(capture, work / "target")
            print(noise_row(each.name, noise(capture, work / "target", work).as_json()), flush=True)
            dxt_replay.unstage(work / "target")


if __name__ == "__main__":
    main()
