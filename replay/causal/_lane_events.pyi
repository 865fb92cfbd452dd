from collections.abc import Sequence

import numpy as np

from dxt_replay.replay.causal.events import EventLane, Watch

class Service: ...

def run(
    lanes: Sequence[EventLane], service: Service | None, watch: Watch | None, served: np.ndarray
) -> tuple[np.ndarray, list[int]]: ...
