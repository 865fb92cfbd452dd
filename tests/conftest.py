"""Hypothesis: the same examples in every run, so that a failure comes from the change and from nothing else. Groups of
tests, which are marks: `-m mpi`. `make test-fast` runs what is in none of them; CI runs that, then the groups.

    pytest --hypothesis-profile=search        # other examples in every run: what `make test-slow` does
    pytest --hypothesis-profile=quick         # the first fifth of the examples: what `make test-fast` does
    pytest -n 2 --dist loadgroup              # two processes: a file, or all of MACHINE, stays in one

Examples run as long as they need: these tests share their machine.
"""

import re
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
        "replay/run/test_story.py",
        "replay/causal/test_paced_ranks.py",
        "replay/commands/test_commands.py::test_the_demo",
    ),
    "faults": (
        "replay/faults",
        "test_bad_input.py",
        "test_nothing_outside.py",
        "traces/store/test_refusing_disk.py",
        "traces/store/test_checks.py::test_what_would_fill_the_memory",
    ),
    "browser": ("replay/show/page/test_browser.py",),
    "whole": (
        "benchmarks",
        "docs/test_json.py",
        "docs/test_docs.py::test_a_reader",
        "fuzz",
        "golden/test_golden.py::test_what_a_command_prints",
        "profiler_merge/analysis/test_summary.py::test_any_number_of_processes_comes_to_the_same_bits",
        "profiler_merge/analysis/test_summary.py::test_the_ranks_alone_come_to_the_whole",
        "profiler_merge/clocks/test_alignment.py",
        "profiler_merge/darshan/test_damaged.py",
        "profiler_merge/export",
        "profiler_merge/test_counted.py",
        "profiler_merge/profiles/test_torch_spans.py::test_real_files",
        "profiler_merge/test_merge_profiles.py",
        "profiler_merge/rebuild/test_real_logs.py",
        "replay/calibration",
        "replay/commands",
        "replay/engine/test_system.py",
        "replay/hdf5/test_twins.py",
        "replay/test_anonymize.py",
        "replay/test_jobs.py",
        "replay/transform/test_transformed.py",
        "replay/test_verify.py::test_a_capture_of_another_writer",
        "same",
        "traces/store/test_checks.py",
        "traces/store/test_index.py",
        "traces/test_workers.py",
        "workloads/fit",
        "workloads/generate/test_orders.py",
        "workloads/generate/test_generation.py",
        "workloads/generate/test_requests.py::test_a_sample_of_a_contiguous_dataset_is_read_as_strace_shows",
    ),
}
"""Mark -> the folders, files and tests (FILE::NAME) that have it. mpi: jobs under mpiexec. faults: full disks, limits,
signals, calls that hang. browser: the page in a real one. whole: commands and captures from end to end, recorded files
held against other readers of them."""

# Shells start what they run in the background with Ctrl-C ignored, and nohup ignores SIGHUP: tests would wait for ever.
for _number, _usual in ((signal.SIGINT, signal.default_int_handler), (signal.SIGHUP, signal.SIG_DFL)):
    if signal.getsignal(_number) is signal.SIG_IGN:
        signal.signal(_number, _usual)

settings.register_profile("repeatable", deadline=None, derandomize=True)
settings.register_profile("search", deadline=None, print_blob=True)
settings.register_profile("quick", settings.get_profile("repeatable"), max_examples=20)
settings.load_profile("repeatable")


def name_of(path: Path) -> str:
    """A file of tests as in GROUPS."""
    return path.relative_to(Path(__file__).parent).as_posix()


def groups_of(name: str) -> set[str]:
    """The groups of a file or test."""
    return {group for group, names in GROUPS.items() if name.startswith(names)}


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Import no file of a group that `-m 'not (GROUP or ...)'` leaves out: that takes longer than many tests."""
    left_out = re.fullmatch(r"not \(?(\w+(?: or \w+)*)\)?", config.option.markexpr or "")
    if left_out is None or collection_path.suffix != ".py":
        return None
    return True if groups_of(name_of(collection_path)) & set(left_out[1].split(" or ")) else None


# First: pytest-xdist makes groups of the marks in its own hook of this name.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        path = name_of(item.path)
        for group in groups_of(f"{path}::{item.name}"):
            item.add_marker(group)
        if config.pluginmanager.hasplugin("xdist"):
            item.add_marker(pytest.mark.xdist_group("machine" if path.startswith(MACHINE) else path))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Without groups tests would disturb each other unnoticed: pytest 9.2 ignores the names that xdist gives them."""
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("this pytest ignores the groups of pytest-xdist: install pytest<9.2")
