"""Merges every Darshan log in some folders and lists the results: `python -m benchmarks.log_survey FOLDER...
[--replay]`.

Each log gets a line: operations traced and rebuilt from counters; how many of the rebuilt streams (a rank's reads, or
writes, of a file) meet all their counters, and the counters that the others miss; seconds of processor time and peak
memory. A refused log gets the refusal. Each command runs in a process of its own, with a limit of time. With `--replay`
each capture that moves little enough is staged sparsely, replayed at once and compared.
Exit status 1 when a command ended with a traceback, was stopped at its limit, or a replay failed.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dxt_replay.traces.units import format_bytes

LIMIT_S = 600
"""Seconds that one command may take."""

MOST_REPLAYED = 1 << 30
"""Bytes that a capture may move to be replayed."""

_TEXT = 110


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A command that ended. `status` is None if it was stopped at its limit; `said` is its JSON object."""

    status: int | None
    said: dict[str, Any]
    error: str
    cpu_s: float
    peak_bytes: int


def command(*arguments: str, limit_s: int = LIMIT_S) -> Ended:
    """Run one command of dxt-replay with `--json` in a new process."""
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        child = subprocess.Popen(
            [sys.executable, "-m", "dxt_replay.replay.commands.main", *arguments, "--json"], stdout=out, stderr=errors,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_CPU, (limit_s, limit_s)),
        )  # fmt: skip
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        text, error = out.read().decode(), errors.read().decode()
    try:
        said = json.loads(text)
    except ValueError:
        said = {}
    return Ended(
        status=child.returncode if child.returncode >= 0 else None,
        said=said,
        error=said.get("error", {}).get("message", "") or error.strip().rpartition("\n")[2],
        cpu_s=used.ru_utime + used.ru_stime,
        peak_bytes=used.ru_maxrss * 1024,
    )


def survey(log: Path, folder: Path, *, replay: bool) -> dict[str, Any]:
    """The result for one log, as a JSON object; `folder` receives its capture, which stays there."""
    capture = folder / "log.capture"
    ended = command("merge", str(log), "-o", str(capture), "--force")
    found: dict[str, Any] = {
        "log": log.name,
        "status": ended.status,
        "cpu_s": round(ended.cpu_s, 2),
        "peak_bytes": ended.peak_bytes,
        "broken": ended.status not in (0, 2) or "Traceback" in ended.error,
    }
    if ended.status != 0:
        return found | {"refused": ended.error}
    rebuilt = ended.said["rebuilt"]
    found |= {
        "ranks": ended.said["ranks"],
        **ended.said["operations"],
        "coverage": ended.said["coverage"]["bytes"],
        "rebuilt": rebuilt,
        "warnings": ended.said["warnings"],
    }
    return found | (_replayed(capture, folder) if replay else {})


def _replayed(capture: Path, folder: Path) -> dict[str, Any]:
    """How staging, replaying and comparing the capture ended; empty if it would move too much."""
    summary = command("summary", str(capture))
    if summary.status != 0:
        return {"replayed": f"summary ended with {summary.status}: {summary.error}", "broken": True}
    moved = [summary.said[part][way] for part, way in
             (("bytes", "read"), ("bytes", "written"), ("reconstructed", "bytes_read"),
              ("reconstructed", "bytes_written"))]  # fmt: skip
    if sum(moved) > MOST_REPLAYED:
        return {"replayed": f"not tried: {format_bytes(sum(moved))}"}
    target, copy = folder / "twin", folder / "replay.capture"
    target.mkdir(exist_ok=True)
    steps = (
        ("stage", str(capture), "--target", str(target), "--sparse"),
        ("run", str(capture), "--target", str(target), "-o", str(copy), "--pace", "none", "--force"),
        ("compare", str(capture), str(copy)),
    )
    ended = {}
    for step in steps:
        ended[step[0]] = done = command(*step)
        if done.status != 0:
            break
    command("stage", str(capture), "--target", str(target), "--remove")
    text = ", ".join(
        f"{name} {done.status}" + (f" ({done.error})" * (done.status != 0)) for name, done in ended.items()
    )
    said = {name: done.said for name, done in ended.items() if name != "stage"}
    return {"replayed": text, "said": said, "broken": any(done.status != 0 for done in ended.values())}


def table(found: Sequence[dict[str, Any]]) -> str:
    """The lines for people."""
    lines = [f"{'log':44}{'ranks':>6}{'traced':>9}{'made':>9}{'streams met':>16}{'CPU s':>8}{'peak':>10}  not met"]
    for each in found:
        cost = f"{each['cpu_s']:>8.1f}{format_bytes(each['peak_bytes']):>10}  "
        name = each["log"].removesuffix(".darshan")[:42].ljust(44)
        if "rebuilt" not in each:
            lines.append(f"{name}{'refused':>40}{cost}{each['refused'][:_TEXT]}")
            continue
        modules = each["rebuilt"]["modules"].values()
        met = " of ".join(str(sum(rebuilt[name] for rebuilt in modules)) for name in ("streams_met", "streams"))
        missed = ", ".join(
            f"{counter} {count}"
            for counter in each["rebuilt"]["missed"]
            if (count := sum(rebuilt["missed"][counter] for rebuilt in modules))
        )
        rest = "; ".join(text for text in (missed, each.get("replayed", "")) if text)
        lines.append(
            f"{name}{each['ranks']:>6}{each['traced']:>9}{each['reconstructed']:>9}{met:>16}{cost}{rest[: 2 * _TEXT]}"
        )
    whole = [each["rebuilt"] for each in found if "rebuilt" in each]
    modules = [module for rebuilt in whole for module in rebuilt["modules"].values()]
    met, streams = (sum(module[name] for module in modules) for name in ("streams_met", "streams"))
    lines.append(
        f"{len(found)} logs: {len(whole)} merged, {len(found) - len(whole)} refused, "
        f"{sum(each['broken'] for each in found)} broken; {met} of {streams} rebuilt streams meet all their counters"
    )
    return "\n".join(lines)


def main(argv: list[str] | None = None) -> int:
    """Print the table or JSON."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, metavar="FOLDER", help="searched for *.darshan, also below")
    parser.add_argument("--replay", action="store_true", help="also stage, run and compare what moves at most 1 GiB")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    arguments = parser.parse_args(argv)
    logs = sorted({log for folder in arguments.folders for log in folder.rglob("*.darshan")})
    found = []
    for number, log in enumerate(logs, 1):
        with tempfile.TemporaryDirectory(prefix="log-survey-") as folder:
            found.append(survey(log, Path(folder), replay=arguments.replay))
        print(f"\r{number} of {len(logs)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    print(json.dumps({"logs": found}, indent=2) if arguments.json else table(found))
    return 1 if any(each["broken"] for each in found) else 0


if __name__ == "__main__":
    sys.exit(main())
