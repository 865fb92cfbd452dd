from collections.abc import Iterable, Sequence

import numpy as np

class Texts:
    def __init__(self, texts: Sequence[bytes]) -> None: ...

class Part:
    def __init__(
        self,
        before: bytes,
        values: np.ndarray | None = None,
        *,
        texts: Texts | None = None,
        digits: int = 0,
        present: np.ndarray | None = None,
    ) -> None: ...

def row_text(rows: int, parts: Iterable[Part]) -> tuple[memoryview, np.ndarray]: ...
