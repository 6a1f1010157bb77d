"""How much input is taken at a time where a pipeline has offload stages, and how long it may wait for company."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from millstream.processor.offloading import NO_WAIT, Gathering
from millstream.processor.stages.offload import OffloadStage

_WEIGHT: Final = 0.1
_BYTES_MIN: Final = 4 * 1024
_BYTES_MAX: Final = 8 * 1024 * 1024


class Gatherer:
    """For one shard. Without offload stages it has nothing to say, and input is taken as it comes."""

    def __init__(self, stages: Sequence[OffloadStage] = ()) -> None:
        self._stages = stages
        self._record_bytes = 0.0

    def wanted(self) -> Gathering:
        """The largest batch that a stage wants, and the shortest time that one of them lets it wait."""
        if not self._stages:
            return NO_WAIT
        wishes = [stage.placement.gathering for stage in self._stages]
        return Gathering(max(wish.records for wish in wishes), min(wish.wait_s for wish in wishes))

    def bytes_wanted(self, gathering: Gathering, usual: int) -> int:
        """About how many bytes so many records have."""
        if gathering == NO_WAIT or not self._record_bytes:
            return usual
        return min(_BYTES_MAX, max(_BYTES_MIN, int(gathering.records * self._record_bytes)))

    def taken(self, records: int, byte_count: int) -> None:
        """So many records were taken."""
        if self._stages and records:
            each = byte_count / records
            self._record_bytes += _WEIGHT * (each - self._record_bytes) if self._record_bytes else each

    def done(self, seconds: float) -> None:
        """A batch is through all stages; its oldest record came in so many seconds before."""
        for stage in self._stages:
            stage.placement.waited(seconds)
