from typing import Any

import numpy as np

from dxt_replay.replay.causal._lane_events import Service
from dxt_replay.replay.simulation.model import StorageModel

class SimulatedStorage(Service):
    def __init__(
        self, model: StorageModel, *, ranks: int, file_bytes: np.ndarray, seed: int = 1, scale: float = 1.0
    ) -> None: ...
    @property
    def use(self) -> Any: ...
