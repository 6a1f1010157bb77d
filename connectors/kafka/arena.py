"""One buffer for the payloads of many batches, packed or not."""

from __future__ import annotations

import numpy as np

from millstream.connectors.kafka.compression import (
    Compression,
    DecompressionError,
    decompress,
    decompress_into,
    first_room,
)
from millstream.processor.columns import Bytes


class ArenaFullError(Exception):
    """The next payload is sound, but does not fit any more."""


class Arena:
    """Payloads, unpacked and copied one after the other; never more than `bytes_max` bytes."""

    def __init__(self, *, bytes_expected: int, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._buffer: Bytes = np.empty(min(bytes_expected, bytes_max), np.uint8)
        self._used = 0

    @property
    def used(self) -> Bytes:
        """Everything added so far."""
        return self._buffer[: self._used]

    def add(self, kind: Compression, payload: memoryview) -> tuple[int, int]:
        """Unpack a payload; where it starts and ends in `used`.

        Raises DecompressionError where it is damaged or larger than `bytes_max` by itself, ArenaFullError where it
        is only too large for what is left. The arena is as before then.
        """
        available = self._bytes_max - self._used
        room = len(payload) if kind is Compression.NONE else first_room(len(payload), available)
        start = self._used
        while True:
            self._reserve(min(room, available))
            try:
                self._used += decompress_into(kind, payload, self._buffer[start:].data)
            except DecompressionError:
                if room >= available:
                    break
            else:
                return start, self._used
            room *= 2
        # Only a second try, with all the room that a batch may have, tells damage from a lack of room.
        decompress(kind, payload, bytes_max=self._bytes_max)
        raise ArenaFullError

    def _reserve(self, room: int) -> None:
        needed = self._used + room
        if needed <= len(self._buffer):
            return
        grown = np.empty(min(max(needed, 2 * len(self._buffer)), self._bytes_max), np.uint8)
        grown[: self._used] = self.used
        self._buffer = grown
