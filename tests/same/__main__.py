"""`python -m tests.same` holds what the product answers about recorded jobs against `frozen.json`."""

import argparse
import json
import multiprocessing
import resource
import shutil
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from tests.places import ROOT
from tests.same.answers import JOBS, answers_of, missing

FROZEN = Path(__file__).with_name("frozen.json")
LEFT_OUT = "left out"
ABSENT = "(nothing)"


def main():
    """Compare, or freeze."""
    parser = argparse.ArgumentParser(prog="python -m tests.same", description=__doc__)
    parser.add_argument("--freeze", action="store_true", help="write frozen.json instead")
    parser.add_argument("--jobs", default=",".join(JOBS), help="these alone, such as imagenet,strace")
    parser.add_argument("--command", default="*", help="commands whose name matches, such as 'summary*'")
    parser.add_argument("--processes", type=int, default=2, help="jobs at a time (default: 2)")
    options = parser.parse_args()
    began = time.monotonic()
    names = options.jobs.split(",")
    if unknown := sorted(set(names) - set(JOBS)):
        parser.error(f"no job {', '.join(unknown)}: choose from {', '.join(JOBS)}")
    if options.freeze and shutil.which("strace") is None:
        parser.error("freezing needs strace")
    absent = {name: why for name in names if (why := missing(name))}
    frozen = read_frozen()
    found = answers(
        [name for name in names if name not in absent], options.command, frozen[LEFT_OUT], options.processes
    )
    for name, why in absent.items():
        print(f"skipped {name}: {why}")
    if shutil.which("strace") is None:
        print("skipped the system calls of replays: strace is not installed")
    lines = []
    if options.freeze:
        write_frozen(frozen, found, whole=options.command == "*")
        print(f"{FROZEN.relative_to(ROOT)}: {FROZEN.stat().st_size / 1e6:.2f} MB")
    else:
        lines = differences(frozen, found, options.command)
        print(*lines, sep="\n", end="\n" if lines else "")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(each.ru_utime + each.ru_stime for each in used)
    count = sum(map(len, found.values()))
    print(f"{count} answers, {len(lines)} differences, {time.monotonic() - began:.0f} s, {cpu_s:.0f} s of CPU")
    return int(bool(lines))


def answers(names, command, left_out, processes):
    """Name of a job -> command -> answer."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        waiting = {name: pool.submit(answers_of, name, command, left_out) for name in names}
        return {name: future.result() for name, future in waiting.items()}


def read_frozen():
    frozen: dict[str, Any] = json.loads(FROZEN.read_text(encoding="utf-8"))
    return frozen


def write_frozen(frozen, found, *, whole):
    """A line for each command of each job. Jobs that are not here stay as they were frozen."""
    for name, answers in found.items():
        frozen[name] = answers if whole else {**frozen.get(name, {}), **answers}
    ordered = {name: frozen[name] for name in JOBS if name in frozen}
    parts = [f'"{LEFT_OUT}": ' + json.dumps(frozen[LEFT_OUT], indent=1)]
    for name, answers in ordered.items():
        rows = [f"{json.dumps(key)}: {json.dumps(value, separators=(',', ':'))}" for key, value in answers.items()]
        parts.append(f"{json.dumps(name)}: {{\n" + ",\n".join(rows) + "\n}")
    FROZEN.write_text("{\n" + ",\n".join(parts) + "\n}\n", encoding="utf-8")


def differences(frozen, found, command):
    """`JOB / COMMAND / KEY: frozen -> now`, a line for each."""
    lines = []
    for name, answers in found.items():
        then = {key: value for key, value in frozen.get(name, {}).items() if fnmatchcase(key, command)}
        if shutil.which("strace") is None and "run none" in then:
            del then["run none"]["calls"]
        for key in dict.fromkeys((*then, *answers)):
            lines += [f"{name} / {key} / {line}" for line in changes(then.get(key, ABSENT), answers.get(key, ABSENT))]
    return lines


def changes(then, now, place=""):
    if isinstance(then, dict) and isinstance(now, dict):
        for key in dict.fromkeys((*then, *now)):
            yield from changes(then.get(key, ABSENT), now.get(key, ABSENT), f"{place}.{key}" if place else key)
    elif isinstance(then, list) and isinstance(now, list) and len(then) == len(now):
        for number, (before, after) in enumerate(zip(then, now, strict=True)):
            yield from changes(before, after, f"{place}[{number}]")
    elif then != now:
        yield f"{place or 'answer'}: {shortened(then)} -> {shortened(now)}"


def shortened(value):
    text = json.dumps(value)
    return text if len(text) <= 200 else f"{text[:200]}..."


if __name__ == "__main__":
    sys.exit(main())
