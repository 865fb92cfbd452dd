"""Declares the compiled cores; all else is in setup.cfg. The folders of the tree are linked below `src/dxt_replay/`.

No core has another form: without a compiler for C and C++ the installation fails.
"""

import os
import re
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

STABLE_ABI = "DXT_REPLAY_STABLE_ABI" in os.environ and sys.version_info >= (3, 11)
"""Whether one wheel is to serve Python 3.11 and newer (`make wheels`). Buffers entered the stable ABI in 3.11, so 3.10
has a wheel of its own."""


MEMORYVIEW = "dxt_replay.traces._memoryview"
"""Cython's class of typed memory views, which the cores share: it was a third of each of them."""


def core(name: str) -> Extension:
    source = "src/" + name.replace(".", "/") + (".c" if name == MEMORYVIEW else ".pyx")
    return Extension(
        name,
        [source],
        extra_compile_args=["-O3", "-ffp-contract=off"],
        define_macros=[("Py_LIMITED_API", "0x030b0000")] if STABLE_ABI else [],
        py_limited_api=STABLE_ABI,
    )


HOME = "https://github.com/dxt-replay/dxt-replay"


def readme() -> str:
    """README.md with absolute links: the page of a package index has no files beside it."""
    text = Path(__file__).with_name("README.md").read_text(encoding="utf-8")
    return re.sub(r"\]\((?!https?:|#)", f"]({HOME}/blob/main/", text)


setup(
    url=HOME,
    project_urls={
        "Documentation": f"{HOME}/blob/main/docs/README.md",
        "Changelog": f"{HOME}/blob/main/CHANGELOG.md",
        "Issues": f"{HOME}/issues",
    },
    long_description=readme(),
    long_description_content_type="text/markdown",
    package_dir={"": "src"},
    packages=find_packages("src"),
    options={"bdist_wheel": {"py_limited_api": "cp311"}} if STABLE_ABI else {},
    ext_modules=cythonize(
        [
            core("dxt_replay.replay.engine.issue"),
            core("dxt_replay.replay.engine.link_free"),
            core("dxt_replay.replay.causal._lane_events"),
            core("dxt_replay.replay.simulation._simulated_storage"),
            core("dxt_replay.replay.target._small_files"),
            core("dxt_replay.traces._memoryview"),
            core("dxt_replay.traces.measures._passes"),
            core("dxt_replay.profiler_merge.darshan._overlap_lanes"),
            core("dxt_replay.profiler_merge.profiles._xplane"),
            core("dxt_replay.profiler_merge.recorder._page_faults"),
        ],
        shared_utility_qualified_name=MEMORYVIEW,
        include_path=["src"],
        compiler_directives={"language_level": "3"},
    ),
)
