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
) -> int: ...
def look(
    directory: int, text: np.ndarray, begins: np.ndarray, ends: np.ndarray, found: np.ndarray, done: np.ndarray
) -> int: ...
def remove(directory: int, text: np.ndarray, begins: np.ndarray, ends: np.ndarray, done: np.ndarray) -> int: ...
