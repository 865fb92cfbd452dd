"""What the commands print, at 80 and 120 columns; after a wanted change run with GOLDEN=write, and read the difference.

The captures are the bundled imagenet and, for `compare`, a small run and two replays of it that the test makes.
Folders, rates and sizes of compressed files are masked. Of a real replay every figure would differ: `run` and `regress`
print results that are written here, and `results/run.json`, which is what `dxt-replay run --json` printed once.
"""

import os
import re
from dataclasses import replace
from pathlib import Path

import pytest

from dxt_replay.replay.commands.main import main
from dxt_replay.replay.commands.session import OUTPUT_SCHEMA_VERSION
from dxt_replay.replay.regress.comparison import BASELINE, CANDIDATE
from dxt_replay.replay.run.result import Repeats
from dxt_replay.replay.show.regress import regression_sections
from dxt_replay.replay.show.run import repeat_sections, run_sections
from dxt_replay.replay.show.section import in_brief
from dxt_replay.replay.show.terminal import print_sections
from dxt_replay.traces.samples import sample
from tests.capture_builder import Span, build_capture, read
from tests.places import SMALL
from tests.replay.regress.builder import result_of, run
from tests.run_results import RUN, run_result

EXPECTED = Path(__file__).parent / "expected"
MS, STEPS = 1_000_000, 40


@pytest.fixture(params=[80, 120])
def columns(request, monkeypatch):
    """Width of the terminal."""
    monkeypatch.setenv("COLUMNS", str(request.param))
    return request.param


def check(name, columns, text):
    """`text` is that of the golden file; with GOLDEN=write it is written there first."""
    expected = EXPECTED / f"{name}-{columns}.txt"
    if os.environ.get("GOLDEN") == "write":
        expected.write_text(text, encoding="utf-8")
    assert text == expected.read_text(encoding="utf-8")
    assert max(map(len, text.splitlines())) <= columns or not name.startswith(("summary", "run", "repeat", "regress"))


# ------------------------------------------------------------------------------------------------------------ commands
COMMANDS = {
    "generate": "generate default reader.batchsize=3 --ranks 2 -o w.capture --force",
    "generate-list": "generate --list",
    "merge": "merge LOG PROFILES -o again.capture --force",
    "merge-no-profile": "merge LOG -o bare.capture --force",
    "merge-counters": "merge DATA/jobs/counters/hdf5_file_opens_only.darshan -o m.capture --force",
    "merge-workers": "merge DATA/jobs/torch_images/logs --profile DATA/jobs/torch_images/profile -o m.capture --force",
    "merge-mapped": "merge DATA/captures/torch_mmap/mmap/logs -o m.capture --force",
    "merge-strace": "merge DATA/other-sources/strace/one.strace.gz -o m.capture --force",
    "stage-dry": "stage run.capture --target absent --dry-run",
    "stage-again": "stage run.capture --target twin",
    "summary": "summary run.capture",
    "summary-details": "summary run.capture --details",
    "summary-limit": "summary run.capture --show storage-limit",
    "summary-jobs": "summary run.capture source.capture",
    "summary-by-file": "summary run.capture --by file",
    "summary-findings": "summary run.capture --show findings",
    "summary-timeline": "summary run.capture --show timeline",
    "summary-tables": "summary run.capture --show overlap --show steps --show sizes --show files --show ranks",
    "summary-model": "summary run.capture --show model",
    "report": "report run.capture -o page.html --force",
    "export-darshan": "export run.capture --to darshan -o out.darshan --force",
    "transform": "transform source.capture --transfer-size 32KiB --compute-speed 2 -o t.capture --force",
    "anonymize": "anonymize run.capture -o a.capture --force",
    "fit": "fit run.capture -o f.yaml --force",
    "simulate": "simulate run.capture --storage nvme --ranks 2,4 --details",
    "fail-compare": "compare source.capture slower.capture --fail-under 0.999",
    "compare-floor": "compare --floor as-fast.capture slower.capture",
    "compare-with-floor": "compare source.capture slower.capture --floor as-fast.capture slower.capture --details",
    "compare-itself": "compare source.capture source.capture",
    "compare-as-fast": "compare source.capture as-fast.capture",
    "compare-as-fast-details": "compare source.capture as-fast.capture --details",
    "compare-slower": "compare source.capture slower.capture",
    "compare-different": "compare run.capture source.capture --different-runs",
    "error-unrelated": "compare run.capture source.capture",
    "error-no-capture-json": "summary absent.capture --json",
    "error-command": "sumary run.capture",
}
"""Name of a golden file -> command, and with 2 or 1 where it says error or fail; LOG and PROFILES: of imagenet."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A working directory with the captures that the cases name, and a staged twin.

    Four reads of 64 KiB in 5 ms each at the begin of every step, by two lanes; the replays are 20 us late.
    """
    place, job = tmp_path_factory.mktemp("golden"), sample("imagenet")
    profiles = [word for path in job.profiles for word in ("--profile", str(path))]
    assert main(["-q", "merge", str(job.log), *profiles, "-o", str(place / "run.capture")]) == 0
    (place / "twin").mkdir()
    assert main(["-q", "stage", str(place / "run.capture"), "--target", str(place / "twin")]) == 0
    ops, spans = [], []
    for step in range(STEPS):
        begin = step * 100 * MS
        spans.append(Span("step", start_ns=begin, end_ns=begin + 98 * MS, step=step))
        spans.append(Span("compute", start_ns=begin + 30 * MS, end_ns=begin + 95 * MS, step=step))
        for number in range(4):
            start, at = begin + number * 6 * MS, (4 * step + number) << 16
            ops.append(read(0, lane=number % 2, offset=at, length=1 << 16, start_ns=start, end_ns=start + 5 * MS))
    made = {"files": ["/data/train.bin"], "spans": spans}
    source = build_capture(place, ops=ops, name="source", **made)
    for name, latency_ns in (("as-fast", 5 * MS), ("slower", 9 * MS)):
        replayed = [
            replace(op, start_ns=op.start_ns + 20_000, end_ns=op.start_ns + 20_000 + latency_ns, due_ns=op.start_ns,
                    result=op.length)
            for op in ops
        ]  # fmt: skip
        build_capture(place, ops=replayed, name=name, replay_of=source, **made)
    return place


def masked(text, folder):
    """Without what differs between runs and machines: folders, free space, rates, sizes of compressed files."""
    for place, name in ((folder, "FOLDER"), (sample("imagenet").log.parent, "SAMPLE"), (SMALL, "DATA")):
        text = text.replace(str(place), name)
    text = re.sub(r"[\d.]+ [KMGT]iB( are)? free", r"SPACE\1 free", text)
    text = re.sub(r"(page\.html: |: 1 file, )[\d.]+ [KM]iB", r"\1SIZE", text)
    return re.sub(r"in [\d.]+ m?s, [\d,.]+ [KMG]iB/s", "in TIME, RATE", text)


@pytest.mark.parametrize("case", COMMANDS)
def test_what_a_command_prints(case, columns, folder, capfd, monkeypatch):
    monkeypatch.chdir(folder)
    profiles = " ".join(f"--profile {path}" for path in sample("imagenet").profiles)
    named = {"LOG": str(sample("imagenet").log), "PROFILES": profiles, "DATA": str(SMALL)}
    line = re.sub("LOG|PROFILES|DATA", lambda found: named[found[0]], COMMANDS[case])
    assert main(line.split()) == {"error": 2, "fail": 1}.get(case.partition("-")[0], 0)
    printed = capfd.readouterr()
    check(case, columns, masked(printed.out + printed.err, folder))


# ------------------------------------------------------------------------------------------------------------- results
LATE = {"p50": 1800.5, "p90": 9_230.0, "p99": 41_250.0, "max": 88_125.5}
EARLY = {name: value / 1000 for name, value in LATE.items()}
STOPPED = {"stopped": True, "operations": 210, "elapsed_s": 2.104}

RUNS = {
    "run-on-time": {},
    "run-late": {"lag_us": LATE, "response_us": {name: value + 30 for name, value in LATE.items()}},
    "run-late-as-the-machine": {"lag_us": LATE, "jitter_us": LATE},
    "run-late-by-itself": {"lag_us": LATE, "jitter_us": LATE, "jitter_before_us": EARLY, "processors_pct": 95.0},
    "run-failed": {"failed": 13, "errors": {"ENOENT": 12, "EIO": 1}, "close_errors": {"ENOSPC": 1}, "short": 2},
    "run-stopped": STOPPED,
    "run-faster": {"speed": 4.0, "compute_speed": 4.0, "io_speed": 4.0, "elapsed_s": 1.884},
    "run-as-fast-as-it-goes": {"pace": "none", "elapsed_s": 0.046, "lag_us": None},
    "run-direct": {"direct": True, "backends": ["mpi_io", "posix"]},
    "run-empty": {
        "operations": 0, "elapsed_s": 0.0, "overhead": {"fraction_pct": None, "per_operation_ns": 26.316},
        "lag_us": None, "latency_us": None, "latency_by_operation_us": {}, "response_us": None,
    },
    "repeat": {},
    "repeat-failed": {"failed": 13, "errors": {"EIO": 13}, "short": 2},
    "repeat-late": {"lag_us": LATE},
    "repeat-stopped": STOPPED,
}  # fmt: skip
"""Name of a golden file -> what differs from RUN, in the last run of three where it is repeated."""

ELAPSED_S = (7.412, 7.533, 7.498, 7.461, 7.577, 7.440, 7.512, 7.489, 7.530, 7.455, 7.502, 7.471)
"""Of the baseline, by pair."""
STEADY = (1.000, 1.003, 0.998, 1.001, 0.997, 1.002, 0.999, 1.004, 0.996, 1.000, 1.002, 0.999)
NOISY = (1.00, 1.21, 0.83, 1.08, 0.91, 1.17, 0.88, 1.30, 0.79, 1.02, 1.12, 0.95)
"""The candidate in each pair, as a multiple of the baseline, before the change of a case."""

EXPERIMENTS = {
    "regress-regression": {"change": 1.18},
    "regress-several-times": {"change": 3.4},
    "regress-improvement": {"change": 0.85},
    "regress-no-change": {"change": 1.0},
    "regress-inconclusive": {"change": 1.0, "spread": NOISY},
    "regress-too-few-pairs": {"change": 1.18, "pairs": 3},
    "regress-few-pairs": {"change": 1.18, "pairs": 6},
    "regress-stopped": {"change": 1.18, "pairs": 7, "stopped": True},
    "regress-not-valid": {"change": 1.18, "resident_pct": 64.0, "failed": 3},
}
"""Name of a golden file -> arguments of `experiment`."""


def repeats(**last):
    """Three runs, of which the last one differs by `last`."""
    runs = [{**RUN, "elapsed_s": elapsed} for elapsed in (7.533, 7.541, 7.602)]
    return Repeats(runs=tuple(map(run_result, [*runs[:2], runs[2] | last])))


def measured(side, pair, factor, **changes):
    elapsed_s = ELAPSED_S[pair - 1] * factor
    of_elapsed = {"latency_mean_us": 24.5, "read_latency_p50_us": 5.1, "read_latency_p99_us": 700}
    metrics = {name: times * elapsed_s for name, times in of_elapsed.items()}
    metrics |= {"elapsed_s": elapsed_s, "io_time_s": elapsed_s / 3, "bandwidth_mib_s": 2900 / elapsed_s}
    late = {"lag_us": {"p50": 1.0, "p90": 4.0, "p99": 60.0, "max": 300.0}, "jitter_us": RUN["jitter_us"]}
    fields = {"operations": 704, "bytes_read": 131_169_920, "bytes_written": 926, "whole_s": elapsed_s}
    return run(side, pair, **{**metrics, **late, **fields, "overhead_pct": 0.02, **changes})


def experiment(*, change, spread=STEADY, pairs=12, stopped=False, **candidate):
    """The result of an experiment. `candidate`: what else its runs differ in; `stopped`: within the last run."""
    runs = []
    for pair in range(1, pairs + 1):
        last = {"stopped": stopped and pair == pairs}
        both = [
            measured(BASELINE, pair, 1.0),
            measured(CANDIDATE, pair, change * spread[pair - 1], **last, **candidate),
        ]
        runs += both if pair % 2 else both[::-1]
    return result_of(runs, baseline="/mnt/old/twin", candidate="/mnt/new/twin")


@pytest.mark.parametrize("case", [*RUNS, *EXPERIMENTS])
def test_what_is_printed_of_a_result(case, columns, capsys):
    """Of an experiment in brief at 80 columns, with all details at 120."""
    if case in EXPERIMENTS:
        sections = regression_sections(experiment(**EXPERIMENTS[case]))
        sections = in_brief(sections) if columns == 80 else sections
    elif case.startswith("repeat"):
        sections = repeat_sections(repeats(**RUNS[case]))
    else:
        sections = run_sections(run_result({**RUN, **RUNS[case]}))
    print_sections(sections)
    printed = capsys.readouterr().out
    assert case in RUNS or columns == 120 or len(printed.splitlines()) <= 15
    check(case, columns, printed)


def test_the_json_of_runs_keeps_its_shape_and_has_the_spread_of_those_that_ended():
    printed = {"schema_version": OUTPUT_SCHEMA_VERSION, **run_result(RUN).as_json()}
    assert list(printed) == list(RUN)
    assert printed == {**RUN, "overhead": pytest.approx(RUN["overhead"])}
    printed = repeats(stopped=True, elapsed_s=2.104).as_json()
    assert printed["elapsed_s"] == {"median": pytest.approx(7.537), "min": 7.533, "max": 7.541}
    assert [run["elapsed_s"] for run in printed["runs"]] == [7.533, 7.541, 2.104]
