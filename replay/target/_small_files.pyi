import numpy as np

def write(
    directory: int,
    text: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    sizes: np.ndarray,
    record_ids: np.ndarray,
    noise: np.ndarray,
    done: np.ndarray,
) -> int:
    """Make files with the start of their noise, none of which may exist; of the one that was refused nothing is left.

    `sizes`, `record_ids`: int64 and uint64, one a name.
    """

def look(
    directory: int, text: np.ndarray, begins: np.ndarray, ends: np.ndarray, found: np.ndarray, done: np.ndarray
) -> int:
    """Set in `found`, int64[names, 3], the mode (0 where there is nothing), the size and the links of each name."""

def remove(directory: int, text: np.ndarray, begins: np.ndarray, ends: np.ndarray, done: np.ndarray) -> int:
    """Remove plain files, counted in done[1] (`done` int64[2]), and leave everything else."""

def resident(fd: int, size: int, window_bytes: int) -> int:
    """Bytes of the first `size` bytes of an open file in the page cache, from mincore(2) on a mapping that is never
    read.

    `window_bytes`: what is mapped at a time, whole pages.
    Raises: OSError where the file cannot be mapped.
    """
