"""What a stage's batches cost beside the function itself: reading the values and writing them, on every device alike.

Measured with each batch; added to what a device is seen to take for bare columns, so that both are from bytes to bytes.
"""

from __future__ import annotations

from typing import Final

from millstream.gpu_offload.service_model import bucket_of

_WEIGHT: Final = 0.05
# What a batch takes at least, however small it is.
_FIXED_S: Final = 50e-6


class Surroundings:
    """By size of batch, as an average in which the newest count most."""

    def __init__(self) -> None:
        self._per_bucket: dict[int, float] = {}

    @property
    def is_known(self) -> bool:
        """Whether anything was observed."""
        return bool(self._per_bucket)

    def observed(self, rows: int, seconds: float) -> None:
        """A batch took so long beside its function."""
        bucket = bucket_of(rows)
        known = self._per_bucket.get(bucket)
        self._per_bucket[bucket] = seconds if known is None else known + _WEIGHT * (seconds - known)

    def seconds(self, rows: int) -> float:
        """What a batch of so many rows takes; 0 while nothing is known."""
        if not self._per_bucket:
            return 0.0
        bucket = bucket_of(rows)
        nearest = min(self._per_bucket, key=lambda known: abs(known - bucket))
        found = self._per_bucket[nearest]
        fixed = min(_FIXED_S, found)
        return float(fixed + (found - fixed) * 2.0 ** (bucket - nearest))
