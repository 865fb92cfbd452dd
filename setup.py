"""Declares the compiled cores; all else is in setup.cfg. The folders of the tree are linked below `dxt_replay/`.

No core has another form: without a compiler for C and C++ the installation fails.
"""

from Cython.Build import cythonize
from setuptools import Extension, find_packages, setup


def core(name: str) -> Extension:
    source = name.replace(".", "/") + ".pyx"
    return Extension(name, [source], extra_compile_args=["-O3", "-ffp-contract=off"])


setup(
    packages=find_packages(include=["dxt_replay*"]),
    ext_modules=cythonize(
        [
            core("dxt_replay.replay.engine.issue"),
            core("dxt_replay.replay.engine.link_free"),
            core("dxt_replay.replay.causal._lane_events"),
            core("dxt_replay.replay.simulation._simulated_storage"),
            core("dxt_replay.replay.target._small_files"),
            core("dxt_replay.profiler_merge.darshan._overlap_lanes"),
            core("dxt_replay.profiler_merge.profiles.xplane._xplane"),
        ],
        compiler_directives={"language_level": "3"},
    ),
)
