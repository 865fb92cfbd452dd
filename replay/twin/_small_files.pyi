import numpy as np

def write_small_files(
    directory: int,
    text: np.ndarray,
    begins: np.ndarray,
    ends: np.ndarray,
    sizes: np.ndarray,
    record_ids: np.ndarray,
    noise: np.ndarray,
    done: np.ndarray,
) -> int: ...
def look_at_files(
    directory: int, text: np.ndarray, begins: np.ndarray, ends: np.ndarray, found: np.ndarray, done: np.ndarray
) -> int: ...
def remove_files(directory: int, text: np.ndarray, begins: np.ndarray, ends: np.ndarray, done: np.ndarray) -> int: ...
