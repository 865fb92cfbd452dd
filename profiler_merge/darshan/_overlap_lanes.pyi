import numpy as np

class CompiledOverlap:
    def following(self, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray: ...
