"""What a request costs, from the recorded requests of the same capture: latency + bytes / bandwidth. Pure.

A request that is changed keeps what its bytes took in the capture, and has one latency. So what stays as it was costs
what it cost, a merged request saves latencies, and a slow byte stays slow.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dxt_replay.traces.schema import OPS


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestCost:
    """A fit for one kind of operation.

    latency_ns: of a request of no bytes.
    ns_per_byte: of each byte.
    requests: how many the fit is made of.
    """

    latency_ns: float
    ns_per_byte: float
    requests: int

    def duration_ns(self, length: np.ndarray) -> np.ndarray:
        """int64 (n,): how long requests of these lengths last."""
        return np.rint(self.latency_ns + self.ns_per_byte * length).astype(np.int64)

    def of_bytes(self, duration_ns: np.ndarray) -> np.ndarray:
        """float64 (n,): what the bytes of recorded requests took, without the latency."""
        beyond: np.ndarray = np.maximum(duration_ns - self.latency_ns, 0.0)
        return beyond


class CostFit:
    """Sums over requests, from which a line is fitted by least squares; all of a capture in constant memory."""

    def __init__(self) -> None:
        self._sums = np.zeros((len(OPS), 6))
        self._sums[:, 5] = np.inf

    def add(self, op: np.ndarray, length: np.ndarray, duration_ns: np.ndarray) -> None:
        """Count these operations. `op`: codes (n,). `length`: bytes (n,). `duration_ns`: int64 (n,)."""
        size, lasted = length.astype(np.float64), duration_ns.astype(np.float64)
        for code in np.unique(op).tolist():
            x, y = size[op == code], lasted[op == code]
            self._sums[code, :5] += (len(x), x.sum(), (x * x).sum(), y.sum(), (x * y).sum())
            self._sums[code, 5] = min(self._sums[code, 5], y.min())

    def cost(self, op: int) -> RequestCost:
        """The line for one kind of operation; neither latency nor time per byte is negative.

        Requests of one length alone do not show which is which: then the shortest of them is the latency.
        """
        count, sum_x, sum_xx, sum_y, sum_xy, shortest = self._sums[op].tolist()
        if not count:
            return RequestCost(latency_ns=0.0, ns_per_byte=0.0, requests=0)
        spread = sum_xx - sum_x * sum_x / count
        if spread <= 1e-9 * max(sum_xx, 1.0):
            latency = shortest if sum_x else sum_y / count
            per_byte = (sum_y - count * latency) / sum_x if sum_x else 0.0
            return RequestCost(latency_ns=latency, ns_per_byte=max(per_byte, 0.0), requests=int(count))
        slope = (sum_xy - sum_x * sum_y / count) / spread
        latency = (sum_y - slope * sum_x) / count
        if slope < 0:
            slope, latency = 0.0, sum_y / count
        elif latency < 0:
            slope, latency = sum_xy / sum_xx, 0.0
        return RequestCost(latency_ns=latency, ns_per_byte=slope, requests=int(count))
