"""Hypothesis: the same examples in every run, so that a failure comes from the change and from nothing else.

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
    if not config.pluginmanager.hasplugin("xdist"):
        return
    tests = Path(__file__).parent
    for item in items:
        path = item.path.relative_to(tests).as_posix()
        item.add_marker(pytest.mark.xdist_group("machine" if path.startswith(MACHINE) else path))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Without groups tests would disturb each other unnoticed: pytest 9.2 ignores the names that xdist gives them."""
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("this pytest ignores the groups of pytest-xdist: install pytest<9.2")
