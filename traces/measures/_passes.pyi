import numpy as np

def newly_covered(starts: np.ndarray, ends: np.ndarray, reach: int) -> tuple[np.ndarray, np.ndarray, int]: ...
def joined(starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
def covered_before(starts: np.ndarray, ends: np.ndarray, times: np.ndarray) -> np.ndarray: ...
def in_flight(open_ends: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]: ...
def add_at(totals: np.ndarray, places: np.ndarray, amounts: np.ndarray) -> None: ...
def add_to_curves(
    changes: np.ndarray, bin_ns: int, origin_ns: int, starts: np.ndarray, ends: np.ndarray, lengths: np.ndarray
) -> None: ...
def rates(lengths: np.ndarray, durations: np.ndarray, unit: float) -> tuple[np.ndarray, int]: ...

class KeyTable:
    def __init__(self, columns: int) -> None: ...
    def sorted(self) -> tuple[np.ndarray, np.ndarray]: ...

def mix_prints(values: np.ndarray) -> np.ndarray: ...
def add_sequences(
    by_file: KeyTable,
    by_lane: KeyTable,
    files: np.ndarray,
    lanes: np.ndarray,
    ops: np.ndarray,
    offsets: np.ndarray,
    lengths: np.ndarray,
    read: int,
    write: int,
) -> None: ...
def follow_lanes(
    by_lane: KeyTable, lanes: np.ndarray, starts: np.ndarray, stride: int
) -> tuple[np.ndarray, np.ndarray]: ...
def follow_last_bytes(
    state: np.ndarray, ranks: np.ndarray, kinds: np.ndarray, files: np.ndarray, offsets: np.ndarray, lengths: np.ndarray
) -> tuple[int, int, int]: ...

ORDER_STATE: int

def count_accesses(
    counts: np.ndarray,
    order: np.ndarray,
    written: np.ndarray,
    files: np.ndarray,
    offsets: np.ndarray,
    lengths: np.ndarray,
    durations: np.ndarray,
    smalls: np.ndarray,
) -> None: ...
