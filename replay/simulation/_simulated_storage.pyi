import numpy as np

from dxt_replay.replay.causal._lane_events import Service
from dxt_replay.replay.simulation.storage_model import StorageModel
from dxt_replay.replay.simulation.storage_use import StorageUse

class SimulatedStorage(Service):
    def __init__(
        self, model: StorageModel, *, ranks: int, file_bytes: np.ndarray, seed: int = 1, scale: float = 1.0
    ) -> None: ...
    @property
    def use(self) -> StorageUse: ...
