import numpy as np

class OverlapLanes:
    def following(self, start_ns: np.ndarray, end_ns: np.ndarray) -> np.ndarray: ...
