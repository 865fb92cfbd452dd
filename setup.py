"""Declares the two compiled cores; everything else is in setup.cfg.

Both have a Python twin with the same behaviour, so a machine without a C compiler still installs.
DXT_REPLAY_REQUIRE_COMPILED=1 (set in CI) turns a failed compilation into a failed install.
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

OPTIONAL = os.environ.get("DXT_REPLAY_REQUIRE_COMPILED") != "1"


def core(name: str) -> Extension:
    source = name.replace(".", "/") + ".pyx"
    return Extension(name, [source], extra_compile_args=["-O3"], optional=OPTIONAL)


setup(
    ext_modules=cythonize(
        [core("replay.engine._issue"), core("profiler_merge.profiles.xplane._xplane")],
        compiler_directives={"language_level": "3"},
    )
)
