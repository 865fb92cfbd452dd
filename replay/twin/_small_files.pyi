import numpy as np

def write_small_files(
    directory: int,
    names: list[bytes],
    sizes: np.ndarray,
    record_ids: np.ndarray,
    noise: np.ndarray,
    done: np.ndarray,
) -> int: ...
