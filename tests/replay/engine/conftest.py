"""The file that tests of the issue loop read."""

import os

import numpy as np
import pytest


@pytest.fixture
def data(tmp_path):
    """A file of 10,000 bytes."""
    path = tmp_path / "data"
    path.write_bytes(np.random.default_rng(1).bytes(10_000))
    return os.fsencode(path)
