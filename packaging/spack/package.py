# SPDX-License-Identifier: (Apache-2.0 OR MIT)

from spack_repo.builtin.build_systems.python import PythonPackage

from spack.package import *


class PyDxtReplay(PythonPackage):
    """Replays the I/O of deep-learning jobs captured with Darshan DXT and the framework's profiler."""

    homepage = "https://github.com/dxt-replay/dxt-replay"
    git = homepage + ".git"

    license("BSD-3-Clause")

    # A release of the package index gets `pypi = ...` and its sha256 here.
    version("0.3.0", tag="v0.3.0")

    variant("mpi", default=True, description="Replays of several processes")
    variant("dask", default=False, description="Share work among machines with Dask")

    depends_on("c", type="build")
    depends_on("cxx", type="build")
    depends_on("python@3.10:", type=("build", "link", "run"))
    depends_on("py-setuptools@68:", type="build")
    depends_on("py-wheel", type="build")
    depends_on("py-cython@3.1:", type="build")

    depends_on("py-numpy@1.26:", type=("build", "run"))
    depends_on("py-pandas@2:", type=("build", "run"))
    depends_on("py-pyarrow@20:", type=("build", "run"))
    depends_on("py-h5py@3.10:", type=("build", "run"))
    depends_on("py-click@8.2:", type=("build", "run"))
    depends_on("py-jinja2@3.1:", type=("build", "run"))
    depends_on("py-msgspec@0.18.6:", type=("build", "run"))
    depends_on("py-duckdb@1.0:", type=("build", "run"))
    depends_on("py-pyyaml@6.0.1:", type=("build", "run"))
    depends_on("py-mpi4py@4.1:", type=("build", "run"), when="+mpi")
    depends_on("py-distributed@2024.1:", type=("build", "run"), when="+dask")

    def test_demo(self):
        """examine the machine, and replay a bundled capture"""
        program = which(self.prefix.bin.join("dxt-replay"))
        program("doctor")
        if self.spec.satisfies("+mpi"):
            program("demo", "imagenet")
