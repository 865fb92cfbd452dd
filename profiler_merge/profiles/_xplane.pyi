import numpy as np

def split(
    buffer: memoryview, begin: int, end: int, wires: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Fields of the message at buffer[begin:end], in order: int64 (numbers, begins, ends); 0, 0 for a plain number.

    `wires` (uint8): entry k has bit w set when field k may have wire type w. The last value counts the fields with
    larger numbers, which are skipped. Raises DamageError on damaged bytes.
    """

def pick(
    buffer: memoryview, begins: np.ndarray, ends: np.ndarray, wires: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, int]:
    """The last value of each field of n messages: (values uint64, begins, ends, counts int64), each (n, len(wires)),
    and how many fields were skipped, as in `split`.

    An absent field has value 0, begin 0, end 0 and count 0, which is protobuf's default. Raises DamageError as `split`.
    """

def events(
    buffer: memoryview, begins: np.ndarray, ends: np.ndarray, capacity: int, stat_class: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, int, int]:
    """Events of the XLines at begins..ends, in file order, at most `capacity` of them.

    Returns int64 metadata_id, offset_ps (-2**63 where the event has no time) and duration_ps, then one row per kept
    stat: int32 event, uint8 key, uint8 kind (field number in XStat), uint64 value (bits; for kinds 5 and 6 the text's
    position << 32 | length), then how many fields were skipped in events and in stats.
    `stat_class` (uint8, by stat metadata id): 0 not in the plane, an error;
    1 left out; from 2 kept, with key 0 and up. Raises DamageError on damaged bytes.
    """
