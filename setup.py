"""Declares the compiled cores; all else is in setup.cfg. The folders of the tree are linked below `dxt_replay/`.

The decoder of profiles has no other form: without a C compiler the installation fails. The others have a Python
specification to fall back on; DXT_REPLAY_REQUIRE_COMPILED=1 (set in CI) makes its compilation necessary too.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup

LOOP_IS_OPTIONAL = os.environ.get("DXT_REPLAY_REQUIRE_COMPILED") != "1"


def core(name: str, *, optional: bool) -> Extension:
    source = name.replace(".", "/") + ".pyx"
    return Extension(name, [source], extra_compile_args=["-O3", "-ffp-contract=off"], optional=optional)


setup(
    packages=find_packages(include=["dxt_replay*"]),
    ext_modules=cythonize(
        [
            core("dxt_replay.replay.engine._issue", optional=LOOP_IS_OPTIONAL),
            core("dxt_replay.replay.causal._lane_events", optional=LOOP_IS_OPTIONAL),
            core("dxt_replay.replay.simulation._simulated_storage", optional=LOOP_IS_OPTIONAL),
            core("dxt_replay.replay.twin._small_files", optional=LOOP_IS_OPTIONAL),
            core("dxt_replay.profiler_merge.darshan._overlap_lanes", optional=LOOP_IS_OPTIONAL),
            core("dxt_replay.profiler_merge.profiles.xplane._xplane", optional=False),
        ],
        compiler_directives={"language_level": "3"},
    ),
)
