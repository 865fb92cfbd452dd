"""`python -m tests.mutations`: whether the tests notice when the code is changed.

cosmic-ray changes one operator, number or condition at a time, in a copy of the checkout, and runs the tests of that
module. A change that no test notices has survived: it is printed as a diff. Some survivors are no defects, because
they lead to the same result in another way; each other one shows that a test is missing. The exit status is 1 where
the tests notice fewer than LEAST_KILLED of a module's changes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HOME = Path(__file__).resolve().parents[1]
LEAST_KILLED = 0.8
MODULES = {
    "traces/layers.py": "tests/traces/test_layers.py",
    "traces/measures/intervals.py": "tests/traces/test_measures.py",
    "profiler_merge/darshan/dxt.py": "tests/profiler_merge/darshan",
    "profiler_merge/clocks/offsets.py": "tests/profiler_merge/clocks",
    "replay/causal/dealing.py": "tests/replay/causal",
    "replay/causal/feed.py": "tests/replay/causal",
    "replay/plan/pacing.py": "tests/replay/plan",
    "replay/target/posix.py": "tests/replay/target",
    "replay/compare/verdict.py": "tests/replay/compare",
    "replay/regress/statistics.py": "tests/replay/regress",
}
"""The modules on which most results rest, and the tests that must hold each of them."""


def main() -> int:
    """Change each module in turn, print a line for each and the changes that survived."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations", description=__doc__)
    parser.add_argument("--module", action="append", choices=MODULES, help="this module alone; repeatable")
    parser.add_argument("--count", type=int, default=40, help="changes of each module, drawn by chance (default: 40)")
    parser.add_argument("--seed", type=int, default=0, help="other changes for another number")
    options = parser.parse_args()
    weak = []
    with tempfile.TemporaryDirectory() as scratch:
        copy = copied_checkout(Path(scratch) / "checkout")
        for module in options.module or MODULES:
            killed, survivors = mutated(module, copy, options.count, options.seed)
            total = killed + len(survivors)
            print(f"{module}: {killed} of {total} changes noticed by {MODULES[module]}", flush=True)
            for diff in survivors:
                print(diff, flush=True)
            if killed < LEAST_KILLED * total:
                weak.append(module)
    if weak:
        print(f"fewer than {LEAST_KILLED:.0%} noticed: {', '.join(weak)}")
    return 1 if weak else 0


def copied_checkout(place: Path) -> Path:
    """The files that git knows, and the compiled cores, at `place`: cosmic-ray writes its changes into the sources."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=HOME, check=True, capture_output=True, text=True).stdout
    cores = [
        str(core.relative_to(HOME))
        for folder in ("traces", "profiler_merge", "replay")
        for core in (HOME / folder).rglob("*.so")
    ]
    for name in [*filter(None, listed.split("\0")), *cores]:
        if (HOME / name).exists():
            (place / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(HOME / name, place / name, follow_symlinks=False)
    return place


def mutated(module: str, copy: Path, count: int, seed: int) -> tuple[int, list[str]]:
    """How many of `count` changes of `module` its tests noticed, and the diffs of those that they did not."""
    from cosmic_ray.work_db import WorkDB, use_db
    from cosmic_ray.work_item import WorkerOutcome, WorkResult

    command = f"{sys.executable} -m pytest -x -q -p no:cacheprovider -m 'not slow' {MODULES[module]}"
    lines = (
        "[cosmic-ray]",
        *(f"{key} = {json.dumps(value)}" for key, value in (("module-path", module), ("test-command", command))),
        "timeout = 300.0",
        "excluded-modules = []",
        '[cosmic-ray.distributor]\nname = "local"',
    )
    (copy / "mutations.toml").write_text("\n".join(lines) + "\n")
    session = copy / "mutations.sqlite"
    session.unlink(missing_ok=True)
    call(copy, "init", "mutations.toml", session.name)
    call(copy, "--verbosity", "ERROR", "baseline", "mutations.toml")
    with use_db(str(session), WorkDB.Mode.open) as database:
        jobs = sorted(
            database.work_items,
            key=lambda item: (
                item.mutations[0].start_pos,
                item.mutations[0].operator_name,
                item.mutations[0].occurrence,
            ),
        )
        kept = set(random.Random(seed).sample(range(len(jobs)), min(count, len(jobs))))
        left_out = [item.job_id for place, item in enumerate(jobs) if place not in kept]
        database.set_multiple_results(left_out, WorkResult(worker_outcome=WorkerOutcome.SKIPPED))
    call(copy, "exec", "mutations.toml", session.name)
    with use_db(str(session), WorkDB.Mode.open) as database:
        results = [result for _, result in database.results if result.worker_outcome != WorkerOutcome.SKIPPED]
    survivors = [result.diff or "" for result in results if not result.is_killed]
    return len(results) - len(survivors), survivors


def call(copy: Path, *arguments: str) -> None:
    """cosmic-ray in the copy, whose packages stand before any that is installed."""
    environment = {**os.environ, "PYTHONPATH": f"{copy}/src:{copy}", "PYTHONDONTWRITEBYTECODE": "1"}
    subprocess.run([sys.executable, "-m", "cosmic_ray.cli", *arguments], cwd=copy, check=True, env=environment)


if __name__ == "__main__":
    sys.exit(main())
