"""The events that the generator sends: the same ones for the same seed, made in bulk.

An event is one JSON object, about 90 bytes:

    {"id":123,"key":"k-0042","seq":17,"sent_us":1730000000000000,"amount":12.34,"country":"DE"}

`id` counts all events, `seq` counts the events of one key, so that a judge can see a lost event and a broken
order; `sent_us` is when the event was *intended* to leave, so that a system that is late cannot hide it.
Everything but `sent_us` follows from the settings. Events are written by one kernel into one buffer and stay columns,
because a Python object per event would cap a core far below what the generator has to send.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import Enum

import numpy as np
import numpy.typing as npt

from millstream.processor.columns import Bytes, Int32s, Int64s, Slices
from millstream.processor.errors import SettingsError
from millstream.processor.kernels import kernel

UInt64s = npt.NDArray[np.uint64]

KEYS_MAX = 10_000_000
PAYLOAD_BYTES_MAX = 900_000
ZIPF_S_MAX = 10.0
COUNTRIES = ["DE", "FR", "NL", "BE", "AT", "CH", "PL", "CZ", "DK", "SE", "NO", "FI", "ES", "PT", "IT", "GB"]

_PAD_FRAME = len(',"pad":""')
# The five numbers with the most digits that they can have, plus the text around them, is far below this.
_EVENT_BYTES_MAX = 192
# What else is drawn for an event takes its chance from other seeds, so that it does not hang together with the rest.
_KEY_SEED, _SIZE_SEED = 0x51ED270B, 0x2545F491
_UNIT = 2.0**-53


class KeyDistribution(Enum):
    """Which keys the events have."""

    UNIFORM = "uniform"
    ZIPF = "zipf"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadSettings:
    """What decides the events. Raises SettingsError with every mistake at once.

    Events shorter than `payload_bytes` get a `pad` field that brings them to exactly that size, unless they are
    so close to it that the field's own frame does not fit. With `payload_bytes_max` each event's size is drawn, evenly,
    from `payload_bytes` to it. Keys are `<key_prefix>-0000` and so on; under ZIPF the key number n has a share
    proportional to 1/(n+1)^`zipf_s`.
    """

    seed: int = 7
    keys: int = 1000
    key_distribution: KeyDistribution = KeyDistribution.UNIFORM
    zipf_s: float = 1.1
    payload_bytes: int = 90
    payload_bytes_max: int | None = None
    first_id: int = 0
    key_prefix: str = "k"

    def __post_init__(self) -> None:
        mistakes = []
        if self.seed < 0:
            mistakes.append(f"seed is {self.seed}; give 0 or more")
        if not 1 <= self.keys <= KEYS_MAX:
            mistakes.append(f"keys is {self.keys}; give 1 to {KEYS_MAX}")
        if not 0 <= self.payload_bytes <= PAYLOAD_BYTES_MAX:
            mistakes.append(f"payload_bytes is {self.payload_bytes}; give 0 to {PAYLOAD_BYTES_MAX}")
        if self.payload_bytes_max is not None and not self.payload_bytes <= self.payload_bytes_max <= PAYLOAD_BYTES_MAX:
            mistakes.append(
                f"payload_bytes_max is {self.payload_bytes_max}; give payload_bytes ({self.payload_bytes}) "
                f"to {PAYLOAD_BYTES_MAX}"
            )
        if not 0 < self.zipf_s <= ZIPF_S_MAX:
            mistakes.append(f"zipf_s is {self.zipf_s}; give more than 0, at most {ZIPF_S_MAX:g}")
        if self.first_id < 0:
            mistakes.append(f"first_id is {self.first_id}; give 0 or more")
        if not (self.key_prefix.isascii() and self.key_prefix.isalnum() and len(self.key_prefix) <= 32):
            mistakes.append(f"key_prefix is {self.key_prefix!r}; give 1 to 32 ASCII letters and digits")
        if mistakes:
            raise SettingsError("the workload cannot be made", mistakes)


@dataclass(frozen=True, slots=True)
class Events:
    """n events, ready to be sent: Kafka keys, JSON values and intended times, in the order of their ids."""

    key: Slices
    value: Slices
    sent_us: Int64s

    def __len__(self) -> int:
        return len(self.sent_us)

    @property
    def keys(self) -> list[bytes | None]:
        """The keys one by one."""
        return self.key.to_list()

    @property
    def values(self) -> list[bytes | None]:
        """The values one by one."""
        return self.value.to_list()


class Workload:
    """Makes the events, in order of their ids. Any range of ids makes the same events, apart from `seq`."""

    def __init__(self, settings: WorkloadSettings) -> None:
        digits = max(4, len(str(settings.keys - 1)))
        names = "".join(f"{settings.key_prefix}-{number:0{digits}d}" for number in range(settings.keys))
        self._settings = settings
        self._next_id = settings.first_id
        self._key_text: Bytes = np.frombuffer(names.encode(), np.uint8)
        self._key_bytes = len(names) // settings.keys
        self._countries: Bytes = np.frombuffer("".join(COUNTRIES).encode(), np.uint8)
        self._sent_per_key = np.zeros(settings.keys, np.int64)
        self._shares: npt.NDArray[np.float64] | None = None
        if settings.key_distribution is KeyDistribution.ZIPF:
            shares = np.cumsum(np.arange(1, settings.keys + 1, dtype=np.float64) ** -settings.zipf_s)
            self._shares = shares / shares[-1]

    @property
    def event_bytes_max(self) -> int:
        """No event is larger than this."""
        settings = self._settings
        return _EVENT_BYTES_MAX + (settings.payload_bytes_max or settings.payload_bytes)

    def prepare(self) -> None:
        """Afterwards the first events cost no more than the next: the kernel is compiled and loaded."""
        Workload(replace(self._settings, keys=1, payload_bytes=0)).next_events(np.zeros(1, np.int64))

    def next_events(self, sent_us: Int64s) -> Events:
        """One event for each intended send time (microseconds since the epoch, not negative)."""
        count = len(sent_us)
        settings = self._settings
        ids = np.arange(self._next_id, self._next_id + count, dtype=np.int64)
        chance = scrambled(ids, settings.seed)
        keys = self._keys(ids, chance)
        # The key took the low bits; amount and country take their own from the high ones.
        cents = ((chance >> np.uint64(32)) % np.uint64(100_000)).astype(np.int64)
        countries = ((chance >> np.uint64(52)) % np.uint64(len(COUNTRIES))).astype(np.int64)
        sent_us = np.ascontiguousarray(sent_us, np.int64)
        payload_bytes = self._payload_bytes(ids)
        buffer = np.empty(int(payload_bytes.sum()) + count * _EVENT_BYTES_MAX, np.uint8)
        size = np.empty(count, np.int32)
        used = _write_events(
            ids,
            keys,
            sent_us,
            cents,
            countries,
            self._sent_per_key,
            self._key_text,
            self._countries,
            payload_bytes,
            buffer,
            size,
        )
        self._next_id += count
        key = Slices(
            self._key_text, (keys * self._key_bytes).astype(np.int32), np.full(count, self._key_bytes, np.int32)
        )
        return Events(key, Slices.back_to_back(buffer[:used], size), sent_us)

    def _keys(self, ids: Int64s, chance: UInt64s) -> Int64s:
        settings = self._settings
        if self._shares is None:
            return (chance % np.uint64(settings.keys)).astype(np.int64)
        drawn = (scrambled(ids, settings.seed + _KEY_SEED) >> np.uint64(11)).astype(np.float64) * _UNIT
        return np.searchsorted(self._shares, drawn, side="right").astype(np.int64)

    def _payload_bytes(self, ids: Int64s) -> Int64s:
        settings = self._settings
        if settings.payload_bytes_max is None:
            return np.full(len(ids), settings.payload_bytes, np.int64)
        sizes = np.uint64(settings.payload_bytes_max - settings.payload_bytes + 1)
        return (scrambled(ids, settings.seed + _SIZE_SEED) % sizes).astype(np.int64) + settings.payload_bytes


def scrambled(numbers: Int64s, seed: int) -> UInt64s:
    """The numbers as if drawn at random (splitmix64): any range of events can be made without those before it."""
    with np.errstate(over="ignore"):
        start = np.uint64((seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) % 2**64)
        z = (numbers.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + start
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        mixed: UInt64s = z ^ (z >> np.uint64(31))
        return mixed


@kernel
def _write_text(target: Bytes, position: int, text: bytes) -> int:
    for i in range(len(text)):
        target[position + i] = text[i]
    return position + len(text)


@kernel
def _write_number(target: Bytes, position: int, number: int) -> int:
    digits = 1
    rest = number // 10
    while rest > 0:
        digits += 1
        rest //= 10
    rest = number
    for i in range(digits - 1, -1, -1):
        target[position + i] = 48 + rest % 10
        rest //= 10
    return position + digits


@kernel
def _write_events(
    ids: Int64s,
    keys: Int64s,
    sent_us: Int64s,
    cents: Int64s,
    countries: Int64s,
    sent_per_key: Int64s,
    key_text: Bytes,
    country_text: Bytes,
    payload_bytes: Int64s,
    target: Bytes,
    size: Int32s,
) -> int:
    """Writes the events one after the other, and each one's size; answers the bytes used."""
    key_size = len(key_text) // len(sent_per_key)
    p = 0
    for row in range(len(ids)):
        begin = p
        key = keys[row]
        p = _write_text(target, p, b'{"id":')
        p = _write_number(target, p, ids[row])
        p = _write_text(target, p, b',"key":"')
        for i in range(key_size):
            target[p + i] = key_text[key * key_size + i]
        p += key_size
        p = _write_text(target, p, b'","seq":')
        p = _write_number(target, p, sent_per_key[key])
        sent_per_key[key] += 1
        p = _write_text(target, p, b',"sent_us":')
        p = _write_number(target, p, sent_us[row])
        p = _write_text(target, p, b',"amount":')
        p = _write_number(target, p, cents[row] // 100)
        target[p] = 46
        target[p + 1] = 48 + cents[row] % 100 // 10
        target[p + 2] = 48 + cents[row] % 10
        p = _write_text(target, p + 3, b',"country":"')
        target[p] = country_text[2 * countries[row]]
        target[p + 1] = country_text[2 * countries[row] + 1]
        p = _write_text(target, p + 2, b'"')
        missing = payload_bytes[row] - (p - begin) - 1
        if missing >= _PAD_FRAME:
            p = _write_text(target, p, b',"pad":"')
            for i in range(missing - _PAD_FRAME):
                target[p + i] = 120
            p = _write_text(target, p + missing - _PAD_FRAME, b'"')
        target[p] = 125
        p += 1
        size[row] = p - begin
    return p
