"""Hypothesis: the same examples in every run, so that a failure comes from the change and from nothing else. Groups of
tests, which are marks: `-m mpi`, and `-m 'not slow'` for what CI runs; `make test-fast` runs what is in none of them.

    pytest --hypothesis-profile=search        # other examples in every run: what `make test-slow` does
    pytest -n 2 --dist loadgroup              # two processes: a file, or all of MACHINE, stays in one

Examples run as long as they need: these tests share their machine.
"""

import signal
from pathlib import Path

import pytest
from hypothesis import settings

# What starts MPI, times threads or sends signals: tests that would disturb each other side by side.
MACHINE = (
    "replay/calibration",
    "replay/commands",
    "replay/engine",
    "replay/ranks",
    "replay/run",
    "replay/causal",
    "benchmarks",
)

GROUPS = {
    "mpi": (
        "replay/ranks",
        "replay/run/test_run_interfaces.py",
        "replay/run/test_runner.py",
        "replay/causal/test_paced_ranks.py",
        "replay/commands/test_demo.py",
    ),
    "faults": ("replay/faults", "traces/store/test_refusing_disk.py", "test_nothing_outside.py", "test_bad_input.py"),
    "browser": ("replay/show/page/test_browser.py",),
    "whole": (
        "benchmarks",
        "docs/test_example_notebook.py",
        "docs/test_json_keys.py",
        "fuzz",
        "profiler_merge/analysis/test_against_sources.py",
        "profiler_merge/analysis/test_pieces.py",
        "profiler_merge/analysis/test_rank_files.py",
        "profiler_merge/clocks/test_torch_nesting.py",
        "profiler_merge/darshan/test_damaged.py",
        "profiler_merge/export",
        "profiler_merge/test_counted_times.py",
        "profiler_merge/test_large_rank.py",
        "profiler_merge/test_merge_pieces.py",
        "profiler_merge/test_merge_torch.py",
        "profiler_merge/tracers/test_damaged_traces.py",
        "profiler_merge/untraced/test_reconstruct_captures.py",
        "replay/calibration",
        "replay/commands",
        "replay/hdf5/test_replay.py",
        "replay/interface",
        "replay/sharing/test_anonymous_capture.py",
        "replay/transform/test_real_captures.py",
        "traces/store/test_checks.py",
        "traces/store/test_index.py",
        "traces/workers",
        "workloads/fit",
        "workloads/generate/test_benchmark_facts.py",
        "workloads/generate/test_generation.py",
    ),
}
"""Mark -> the tests that have it. mpi: jobs under mpiexec. faults: full disks, limits, signals, calls that hang.
browser: the page in a real one. whole: commands and captures from end to end."""

# Shells start what they run in the background with Ctrl-C ignored, and nohup ignores SIGHUP: tests would wait for ever.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.load_profile("repeatable")


# First: pytest-xdist makes groups of the marks in its own hook of this name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tests = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(tests).as_posix()
        for group, paths in GROUPS.items():
            if path.startswith(paths):
                item.add_marker(group)
        if config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group("machine" if path.startswith(MACHINE) else path))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Without groups tests would disturb each other unnoticed: pytest 9.2 ignores the names that xdist gives them."""
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("this pytest ignores the groups of pytest-xdist: install pytest<9.2")
