"""The judge's books: what went in, what came out, and what does not agree.

Every event has an id, and the books hold a few bytes for each id: how often it stands in the input, how often in the
output, and a balance that is zero when what came out says the same (key, sequence number, send time) as what went in.
Inputs and outputs may be entered in any order and in any batches, so that a judge can watch a running system first
and read its input later. Where it reads both along, ids up to which everything is settled are put aside as one number,
and the books stay as long as what is under way.

What the words mean, for a pipeline that owes `effects_each` outputs for each input:

- *lost*: effects that are owed and were not seen;
- *doubled*: effects beyond those owed;
- *unexpected*: outputs that belong to no input, or cannot be read at all;
- *altered*: the right number of effects, but with another key, sequence number or send time than the input's;
- *reordered*: an output whose key had already shown a later sequence number;
- *scattered*: a key that appears in more than one output partition, where nobody could keep its order.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum
from typing import Any, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from millstream.loadgen.workload import UInt64s, scrambled
from millstream.processor.columns import Bytes, Int32s, Int64s
from millstream.processor.kernels import kernel

# Ids beyond this are foreign: an honest generator would need months to reach them, and the books grow with the
# largest id seen.
EVENT_IDS_MAX = 1_000_000_000
OFFENDERS_NAMED_MAX = 5

Number = TypeVar("Number", bound=np.integer[Any])

FIRST_SIZE = 1 << 16
# Longer books are not looked through for what is settled: one absurd id has made them so, and most pages are not there.
_SETTLING_SIZE_MAX = 1 << 24
_NOT_SEEN = -1
# Lost, doubled, unexpected, altered, seen: what one walk over the books adds up.
_SUMS = 5


class Finding(IntEnum):
    """What the books say about one output when it is entered."""

    FINE = 0
    DOUBLED = 1
    REORDERED = 2
    SCATTERED = 3


class Offender(NamedTuple):
    """One output that broke a rule: which event, and where it stands."""

    event_id: int
    partition: int
    offset: int


@dataclass(frozen=True, slots=True)
class Observed:
    """n events as they were read, one column each; `key` numbers the Kafka keys.

    `partition` counts over all partitions that are read, `offset` is the place within it. Events of one partition
    stand in the order in which they were read.
    """

    event_id: Int64s
    key: Int64s
    seq: Int64s
    sent_us: Int64s
    partition: Int64s
    offset: Int64s

    def __len__(self) -> int:
        return len(self.event_id)

    def take(self, rows: npt.NDArray[np.bool_]) -> Observed:
        """The chosen rows."""
        columns = (self.event_id, self.key, self.seq, self.sent_us, self.partition, self.offset)
        return Observed(*(column[rows] for column in columns))


@dataclass(frozen=True, slots=True, kw_only=True)
class Balance:
    """What the books add up to."""

    inputs: int
    inputs_repeated: int
    inputs_foreign: int
    outputs: int
    lost: int
    doubled: int
    unexpected: int
    altered: int
    reordered: int
    scattered: int
    seen: int

    @property
    def is_clean(self) -> bool:
        """Whether each input has exactly its effects, in order; an empty input proves nothing and is not clean."""
        wrong = self.lost + self.doubled + self.unexpected + self.altered + self.reordered + self.scattered
        return self.inputs > 0 and not wrong and not self.inputs_repeated and not self.inputs_foreign


@dataclass(frozen=True, slots=True)
class Suspects:
    """The first few ids of each kind of offence that only the finished books can tell."""

    lost: list[int]
    unexpected: list[int]
    altered: list[int]


class Books:
    """Accounts for any number of events, about seven bytes for each from the first on that is not settled.

    An id is settled when it was entered once as input and came out as often as owed, and the same. If it comes once
    more, as input or as output, that is counted, and told as it would be of any other; only where both happen to
    settled ids, losses among these are set off against doubles.
    """

    def __init__(self, effects_each: int = 1) -> None:
        if effects_each < 1:
            raise ValueError(f"effects_each is {effects_each}; give 1 or more")
        self._effects_each = effects_each
        # All ids below this are settled, or came again after they were.
        self._settled = 0
        self._inputs_late = self._outputs_late = 0
        self._in = np.zeros(FIRST_SIZE, np.uint8)
        self._out = np.zeros(FIRST_SIZE, np.uint16)
        self._difference = np.zeros(FIRST_SIZE, np.uint32)
        self._last_seq = np.full(FIRST_SIZE, _NOT_SEEN, np.int64)
        self._home = np.full(FIRST_SIZE, _NOT_SEEN, np.int32)
        self._inputs = self._inputs_repeated = self._inputs_foreign = 0
        self._outputs = self._outputs_foreign = self._beyond = 0
        self._reordered = self._scattered = 0
        self.offenders: dict[Finding, list[Offender]] = {
            finding: [] for finding in Finding if finding is not Finding.FINE
        }

    @property
    def inputs(self) -> int:
        """Events entered as input."""
        return self._inputs

    @property
    def outputs(self) -> int:
        """Events entered as output, foreign ones included."""
        return self._outputs

    @property
    def effects_seen(self) -> int:
        """Outputs entered so far, without foreign ones and doubles: what may count against `effects_owed`."""
        return self._outputs - self._outputs_foreign - self._beyond

    @property
    def effects_owed(self) -> int:
        """How many outputs the inputs entered so far should have."""
        return self._inputs * self._effects_each

    def enter_inputs(self, events: Observed, *, foreign: int = 0) -> None:
        """Enter events of the input; `foreign` counts records that are no events at all."""
        known = _ours(events)
        self._inputs_foreign += foreign + len(events) - len(known)
        self._inputs += len(known)
        if len(known):
            self._grow_ids(int(known.event_id.max()))
            # With an even number of effects each, the outputs cancel each other, and the input must not enter at all.
            digest = _digest(known) * np.uint32(self._effects_each % 2)
            late = self._late(known)
            self._inputs_late += late
            entered = _enter_inputs(known.event_id, self._settled, digest, self._in, self._difference)
            self._inputs_repeated += late + entered

    def enter_outputs(self, events: Observed, *, foreign: int = 0) -> None:
        """Enter events of the output; `foreign` counts records that are no events at all."""
        known = _ours(events)
        self._outputs += len(events) + foreign
        self._outputs_foreign += foreign + len(events) - len(known)
        if not len(known):
            return
        self._grow_ids(int(known.event_id.max()))
        self._grow_keys(int(known.key.max()))
        self._outputs_late += self._late(known)
        findings = np.zeros(len(known), np.uint8)
        _enter_outputs(
            known.event_id,
            self._settled,
            known.key,
            known.seq,
            known.partition,
            _digest(known),
            self._effects_each,
            self._out,
            self._difference,
            self._last_seq,
            self._home,
            findings,
        )
        if findings.any():
            self._note(known, findings)

    def balance(self) -> Balance:
        """What the books add up to now."""
        sums, _ = self._added_up()
        lost, doubled, unexpected, altered, seen = sums.tolist()
        owed_late = self._inputs_late * self._effects_each
        lost += max(0, owed_late - self._outputs_late)
        doubled += max(0, self._outputs_late - owed_late)
        seen += self._settled * self._effects_each + min(owed_late, self._outputs_late)
        return Balance(
            inputs=self._inputs,
            inputs_repeated=self._inputs_repeated,
            inputs_foreign=self._inputs_foreign,
            outputs=self._outputs,
            lost=lost,
            doubled=doubled,
            unexpected=unexpected + self._outputs_foreign,
            altered=altered,
            reordered=self._reordered,
            scattered=self._scattered,
            seen=seen,
        )

    def suspects(self) -> Suspects:
        """The first few ids of what only the whole books can tell; a second reading can say where they stand."""
        _, first = self._added_up()
        rows = first.reshape(_SUMS, OFFENDERS_NAMED_MAX)
        lost, unexpected, altered = ([i + self._settled for i in rows[kind].tolist() if i >= 0] for kind in (0, 2, 3))
        return Suspects(lost=lost, unexpected=unexpected, altered=altered)

    def _added_up(self) -> tuple[Int64s, Int64s]:
        sums = np.zeros(_SUMS, np.int64)
        first = np.full(_SUMS * OFFENDERS_NAMED_MAX, _NOT_SEEN, np.int64)
        _add_up(self._in, self._out, self._difference, self._effects_each, sums, first)
        return sums, first

    def _note(self, events: Observed, findings: Bytes) -> None:
        self._beyond += int((findings == Finding.DOUBLED).sum())
        self._reordered += int((findings == Finding.REORDERED).sum())
        self._scattered += int((findings == Finding.SCATTERED).sum())
        for finding, named in self.offenders.items():
            for row in np.flatnonzero(findings == finding)[: OFFENDERS_NAMED_MAX - len(named)]:
                named.append(Offender(int(events.event_id[row]), int(events.partition[row]), int(events.offset[row])))

    def _late(self, events: Observed) -> int:
        return int((events.event_id < self._settled).sum()) if self._settled else 0

    def _grow_ids(self, largest: int) -> None:
        if largest - self._settled >= len(self._in):
            self._settle()
        if largest - self._settled >= len(self._in):
            size = 1 << (largest - self._settled + 1).bit_length()
            self._in = _grown(self._in, size, 0)
            self._out = _grown(self._out, size, 0)
            self._difference = _grown(self._difference, size, 0)

    def _settle(self) -> None:
        size = len(self._in)
        if size > _SETTLING_SIZE_MAX:
            return
        settled = _settled_first(self._in, self._out, self._difference, self._effects_each)
        # Moving the rest costs as much as it is long.
        if settled >= size // 2:
            self._in = _grown(self._in[settled:], size, 0)
            self._out = _grown(self._out[settled:], size, 0)
            self._difference = _grown(self._difference[settled:], size, 0)
            self._settled += settled

    def _grow_keys(self, largest: int) -> None:
        if largest >= len(self._home):
            size = 1 << (largest + 1).bit_length()
            self._last_seq = _grown(self._last_seq, size, _NOT_SEEN)
            self._home = _grown(self._home, size, _NOT_SEEN)


def _ours(events: Observed) -> Observed:
    ours = (events.event_id >= 0) & (events.event_id < EVENT_IDS_MAX) & (events.seq >= 0)
    return events if ours.all() else events.take(ours)


def _digest(events: Observed) -> npt.NDArray[np.uint32]:
    mixed: UInt64s = scrambled(events.key, 1) ^ scrambled(events.seq, 2) ^ scrambled(events.sent_us, 3)
    # Zero would be invisible in the balance.
    return (mixed >> np.uint64(32)).astype(np.uint32) | np.uint32(1)


def _grown(column: npt.NDArray[Number], size: int, fill: int) -> npt.NDArray[Number]:
    # Zeros come from the operating system page by page when they are touched, so a single large id costs little.
    grown = np.zeros(size, column.dtype) if not fill else np.full(size, fill, column.dtype)
    grown[: len(column)] = column
    return grown


@kernel
def _enter_inputs(
    event_id: Int64s, settled: int, digest: npt.NDArray[np.uint32], inputs: Bytes, difference: npt.NDArray[np.uint32]
) -> int:
    repeated = 0
    for row in range(len(event_id)):
        event = event_id[row] - settled
        if event < 0:
            continue
        if inputs[event] > 0:
            repeated += 1
        if inputs[event] < 255:
            inputs[event] += 1
        difference[event] ^= digest[row]
    return repeated


@kernel
def _enter_outputs(
    event_id: Int64s,
    settled: int,
    key: Int64s,
    seq: Int64s,
    partition: Int64s,
    digest: npt.NDArray[np.uint32],
    effects_each: int,
    outputs: npt.NDArray[np.uint16],
    difference: npt.NDArray[np.uint32],
    last_seq: Int64s,
    home: Int32s,
    findings: Bytes,
) -> None:
    for row in range(len(event_id)):
        event, owner = event_id[row] - settled, key[row]
        if event < 0:
            findings[row] = 1
            continue
        difference[event] ^= digest[row]
        if outputs[event] < 65535:
            outputs[event] += 1
        if outputs[event] > effects_each:
            # A double stands behind its successors by nature; that is one offence, not two.
            findings[row] = 1
        elif home[owner] >= 0 and home[owner] != partition[row]:
            findings[row] = 3
        elif seq[row] < last_seq[owner]:
            findings[row] = 2
        else:
            home[owner] = partition[row]
            last_seq[owner] = seq[row]


@kernel
def _settled_first(
    inputs: Bytes, outputs: npt.NDArray[np.uint16], difference: npt.NDArray[np.uint32], effects_each: int
) -> int:
    """How many ids from the first on need no books any more."""
    for event in range(len(inputs)):
        if inputs[event] != 1 or outputs[event] != effects_each or difference[event] != 0:
            return event
    return len(inputs)


@kernel
def _add_up(
    inputs: Bytes,
    outputs: npt.NDArray[np.uint16],
    difference: npt.NDArray[np.uint32],
    effects_each: int,
    sums: Int64s,
    first: Int64s,
) -> None:
    """One walk without temporaries: a single foreign id may have made the books long, but leaves them empty."""
    named_max = len(first) // len(sums)
    named = np.zeros(len(sums), np.int64)
    for event in range(len(inputs)):
        if inputs[event] == 0 and outputs[event] == 0:
            continue
        owed, seen = np.int64(inputs[event]) * effects_each, np.int64(outputs[event])
        sums[4] += min(owed, seen)
        if seen < owed:
            kind, amount = 0, owed - seen
        elif owed == 0:
            kind, amount = 2, seen
        elif seen > owed:
            kind, amount = 1, seen - owed
        elif difference[event] != 0:
            kind, amount = 3, np.int64(1)
        else:
            continue
        sums[kind] += amount
        if named[kind] < named_max:
            first[kind * named_max + named[kind]] = event
            named[kind] += 1
