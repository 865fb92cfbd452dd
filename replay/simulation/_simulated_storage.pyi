from dxt_replay.replay.causal._lane_events import Service
from dxt_replay.replay.simulation.model_numbers import ModelNumbers, StorageUse

CONSTANTS: dict[str, int]

class CompiledStorage(Service):
    def __init__(self, numbers: ModelNumbers, seed: int, scale: float) -> None: ...
    @property
    def use(self) -> StorageUse: ...
