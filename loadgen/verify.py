"""The judge: reads input and output from outside, and says whether each input had its effect exactly once.

It works in this order, whether the system has finished or is still at work:

1. *Follow* (only when told how many events to wait for): read the output while it grows, note when each event
   arrived, until as many effects were seen as are owed, or nothing came for too long.
2. Read the input up to its end, and from it what is owed.
3. Read the output until everything owed was seen, or nothing came for too long.
4. Keep reading for a settling time: a double comes after the event that it doubles.
5. Add up the books; where they do not balance, read once more to say where the first offenders stand.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from enum import Enum

import numpy as np

from millstream.loadgen.accounting import OFFENDERS_NAMED_MAX, Balance, Books, Finding, Offender
from millstream.loadgen.arrival_log import ArrivalLog
from millstream.loadgen.latency import LatencyHistogram
from millstream.loadgen.pauses import Pauses
from millstream.loadgen.reading import KeyNumbers, Reading, TopicReader
from millstream.loadgen.timeline import Timeline
from millstream.loadgen.topics import TopicAdmin
from millstream.loadgen.verdict import Verdict
from millstream.processor.errors import SettingsError, UnavailableError
from millstream.processor.partitions import TopicPartition

_READ_S = 0.1
# Records may be late; the news that there are none takes a connection and one answer.
_END_S = 15.0
_PROGRESS_INTERVAL_S = 0.2
_US_PER_S = 1_000_000
_US_PER_MS = 1000.0


class InputReading(Enum):
    """When a judge that follows reads the input: afterwards, so as to cost little meanwhile, or all along."""

    AFTERWARDS = "afterwards"
    ALONGSIDE = "alongside"


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifySettings:
    """What is to be judged. Raises SettingsError with every mistake at once.

    `follow_events` is how many events the input will hold in the end, for a judge that watches the system at work;
    None judges what is there. `warm_up_events` of them are there before the judge, on purpose. `patience_s` bounds
    every wait for the next record. `input_reading` ALONGSIDE keeps up with the input while following, for runs whose
    first records are gone before their last. `group` is where the pipeline keeps its offsets (its name); None does
    not check them.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    group: str | None = None
    effects_each: int = 1
    follow_events: int | None = None
    warm_up_events: int = 0
    input_reading: InputReading = InputReading.AFTERWARDS
    patience_s: float = 30.0
    settle_s: float = 0.5

    def __post_init__(self) -> None:
        mistakes = []
        if not self.inputs or not self.outputs:
            mistakes.append("inputs and outputs need at least one topic each")
        if both := sorted(set(self.inputs) & set(self.outputs)):
            mistakes.append(f"topic {both[0]!r} is named as input and as output; name two different ones")
        if not 1 <= self.effects_each <= 1000:
            mistakes.append(f"effects_each is {self.effects_each}; give 1 to 1000")
        if self.follow_events is not None and self.follow_events < 1:
            mistakes.append(f"follow_events is {self.follow_events}; give 1 or more")
        if self.patience_s <= 0 or self.settle_s < 0:
            mistakes.append(f"patience_s is {self.patience_s} and settle_s {self.settle_s}; give positive times")
        if mistakes:
            raise SettingsError("the judge cannot start", mistakes)


@dataclass(frozen=True, slots=True)
class JudgeProgress:
    """How far a judge is: what it does, how many outputs it has seen, and how many it waits for (None: not known)."""

    phase: str
    outputs: int
    wanted: int | None


def judge(
    confluent_arguments: Mapping[str, object],
    settings: VerifySettings,
    *,
    on_progress: Callable[[JudgeProgress], None] = lambda _progress: None,
    arrivals: ArrivalLog | None = None,
) -> Verdict:
    """The verdict, and in `arrivals` when output came in while the judge watched.

    Takes as long as the topics are long, plus waits of at most `patience_s` without a record.
    Raises SettingsError for topics that do not exist, and UnavailableError when the brokers do not answer.
    """
    keys = KeyNumbers()
    with ExitStack() as stack:
        inputs = stack.enter_context(TopicReader(confluent_arguments, settings.inputs, keys))
        outputs = stack.enter_context(TopicReader(confluent_arguments, settings.outputs, keys))
        court = _Court(settings, inputs, outputs, on_progress, arrivals)
        court.follow()
        court.read_inputs()
        court.await_outputs()
        balance = court.books.balance()
        admin = TopicAdmin(confluent_arguments)
        behind = None
        if settings.group is not None:
            behind = _offsets_behind(admin, settings.group, inputs.partitions, court.input_ends)
        uncommitted = admin.uncommitted_records(outputs.partitions)
        partitions = (inputs.partitions, outputs.partitions)
    offenders = {} if balance.is_clean else _named(confluent_arguments, settings, court.books, partitions, balance)
    return Verdict(
        balance=balance,
        effects_each=settings.effects_each,
        events_per_s=court.events_per_s(),
        latency=court.latency.percentiles(),
        timeline=court.timeline.moments(),
        output_pause_ms=court.pause_ms(court.pauses.overall_us),
        partition_pause_ms=court.pause_ms(court.pauses.partition_us),
        uncommitted_records=uncommitted,
        offsets_behind=behind,
        offenders=offenders,
        remarks=tuple(_remarks(settings, balance, court.outputs_before, uncommitted, behind)),
    )


class _Court:
    """One case: the readers, the books, and what was measured on the way."""

    def __init__(
        self,
        settings: VerifySettings,
        inputs: TopicReader,
        outputs: TopicReader,
        on_progress: Callable[[JudgeProgress], None],
        arrivals: ArrivalLog | None,
    ) -> None:
        self._arrivals = arrivals
        self._settings = settings
        self._inputs, self._outputs = inputs, outputs
        self._on_progress = on_progress
        self._told = 0.0
        self._measured = 0
        self._first_sent_us: int | None = None
        # What was there before the judge was has no arrival time: it is judged, but not measured.
        is_live = settings.follow_events is not None
        ends = outputs.ends() if is_live else {}
        self._live_from = np.array([ends.get(where, np.iinfo(np.int64).max) for where in outputs.partitions])
        self.outputs_before = sum(ends.values())
        self.books = Books(settings.effects_each)
        self.latency = LatencyHistogram()
        self.timeline = Timeline()
        self.pauses = Pauses()
        self.input_ends: dict[int, int] = {}

    def follow(self) -> None:
        """Read outputs until as many were seen as `follow_events` will have."""
        events = self._settings.follow_events
        if events is None:
            return
        wanted = events * self._settings.effects_each
        # What is loaded by now stays. A collection that looked at it again would take up to 150 ms, and everything that
        # arrives meanwhile would be taken for late.
        gc.freeze()
        is_alongside = self._settings.input_reading is InputReading.ALONGSIDE

        def is_done() -> bool:
            if is_alongside:
                self._enter_inputs(0)
            return self.books.effects_seen >= wanted

        self._read_outputs("following", wanted, is_done)

    def read_inputs(self) -> None:
        """Enter the whole input. In a followed run the last of it may still be on its way: wait for it, too."""
        wanted = self._settings.follow_events or 0
        heard = time.monotonic()
        while not (self._inputs.is_at_end and self.books.inputs >= wanted):
            count = self._enter_inputs(_READ_S)
            self._tell("reading the input", wanted or None)
            if count:
                heard = time.monotonic()
                continue
            silent_s = time.monotonic() - heard
            if self._inputs.is_at_end and silent_s > self._settings.patience_s:
                return
            if silent_s > max(self._settings.patience_s, _END_S):
                raise UnavailableError(f"the input's end was not reached in {silent_s:.0f} s without a record")

    def await_outputs(self) -> None:
        """Enter outputs until everything owed was seen and nothing more came for the settling time."""
        owed = self.books.effects_owed
        self._read_outputs(
            "reading the output", owed, lambda: self.books.effects_seen >= owed and self._outputs.is_at_end
        )
        quiet_since = time.monotonic()
        while time.monotonic() - quiet_since < self._settings.settle_s:
            if self._enter_outputs("settling", owed):
                quiet_since = time.monotonic()

    def events_per_s(self) -> float | None:
        """Measured effects from the first one's intended send time until the last one's arrival."""
        last_us, first_us = self.pauses.last_us, self._first_sent_us
        if last_us is None or first_us is None or last_us <= first_us:
            return None
        return self._measured / self._settings.effects_each * _US_PER_S / (last_us - first_us)

    def pause_ms(self, pause_us: int) -> float | None:
        """In milliseconds; None where nothing was watched."""
        return pause_us / _US_PER_MS if self._measured else None

    def _read_outputs(self, phase: str, wanted: int, is_done: Callable[[], bool]) -> None:
        heard = time.monotonic()
        while not is_done():
            if self._enter_outputs(phase, wanted):
                heard = time.monotonic()
            elif time.monotonic() - heard > self._settings.patience_s:
                return

    def _enter_inputs(self, timeout_s: float) -> int:
        reading = self._inputs.read(timeout_s)
        self.books.enter_inputs(reading.events, foreign=reading.foreign)
        self._note_input_ends(reading)
        return len(reading)

    def _enter_outputs(self, phase: str, wanted: int) -> int:
        reading = self._outputs.read(_READ_S)
        if len(reading):
            self.books.enter_outputs(reading.events, foreign=reading.foreign)
            self._measure(reading)
        self._tell(phase, wanted)
        return len(reading)

    def _measure(self, reading: Reading) -> None:
        events = reading.events
        live = events.offset >= self._live_from[events.partition]
        if not live.any():
            return
        sent_us = events.sent_us[live]
        latency_us = reading.arrived_us - sent_us
        self.latency.record(latency_us)
        self.timeline.record(reading.arrived_us, latency_us)
        self.pauses.note(events.partition[live], reading.arrived_us)
        if self._arrivals is not None:
            self._arrivals.note(events.partition[live], sent_us, reading.arrived_us)
        self._measured += len(sent_us)
        earliest = int(sent_us.min())
        self._first_sent_us = earliest if self._first_sent_us is None else min(self._first_sent_us, earliest)

    def _note_input_ends(self, reading: Reading) -> None:
        events = reading.events
        # Later rows win, and within a partition they are the later ones.
        self.input_ends.update(zip(events.partition.tolist(), (events.offset + 1).tolist(), strict=True))

    def _tell(self, phase: str, wanted: int | None) -> None:
        now = time.monotonic()
        if now - self._told >= _PROGRESS_INTERVAL_S:
            self._told = now
            self._on_progress(JudgeProgress(phase, self.books.outputs, wanted))


def _offsets_behind(
    admin: TopicAdmin, group: str, partitions: tuple[TopicPartition, ...], input_ends: Mapping[int, int]
) -> int:
    committed = admin.committed_offsets(group, partitions)
    return sum(max(0, end - committed.get(partitions[number], 0)) for number, end in input_ends.items())


def _named(
    confluent_arguments: Mapping[str, object],
    settings: VerifySettings,
    books: Books,
    partitions: tuple[tuple[TopicPartition, ...], tuple[TopicPartition, ...]],
    balance: Balance,
) -> dict[str, tuple[str, ...]]:
    """The first few offenders of each kind as `topic-partition@offset (id n)`."""
    suspects = books.suspects()
    in_partitions, out_partitions = partitions
    in_places = _located(confluent_arguments, settings.inputs, settings.patience_s, suspects.lost)
    odd = [*suspects.unexpected, *suspects.altered]
    out_places = _located(confluent_arguments, settings.outputs, settings.patience_s, odd)
    named = {
        "lost": _at(in_partitions, (in_places[i] for i in suspects.lost if i in in_places)),
        "unexpected": _at(out_partitions, (out_places[i] for i in suspects.unexpected if i in out_places)),
        "altered": _at(out_partitions, (out_places[i] for i in suspects.altered if i in out_places)),
    }
    for finding, count in (
        (Finding.DOUBLED, balance.doubled),
        (Finding.REORDERED, balance.reordered),
        (Finding.SCATTERED, balance.scattered),
    ):
        named[finding.name.lower()] = _at(out_partitions, books.offenders[finding]) if count else ()
    return {kind: places for kind, places in named.items() if places}


def _located(
    confluent_arguments: Mapping[str, object], topics: tuple[str, ...], patience_s: float, wanted: list[int]
) -> dict[int, Offender]:
    """Where the first record with each of these ids stands; ids that are not found in time are left out."""
    found: dict[int, Offender] = {}
    if not wanted:
        return found
    wanted_ids = np.array(wanted, np.int64)
    with TopicReader(confluent_arguments, topics, KeyNumbers()) as reader:
        heard = time.monotonic()
        while len(found) < len(wanted) and not reader.is_at_end and time.monotonic() - heard < patience_s:
            events = reader.read(_READ_S).events
            if len(events):
                heard = time.monotonic()
            for row in np.flatnonzero(np.isin(events.event_id, wanted_ids)):
                event_id = int(events.event_id[row])
                place = Offender(event_id, int(events.partition[row]), int(events.offset[row]))
                found.setdefault(event_id, place)
    return found


def _at(partitions: tuple[TopicPartition, ...], offenders: Iterable[Offender]) -> tuple[str, ...]:
    named = [f"{partitions[o.partition]}@{o.offset} (id {o.event_id})" for o in offenders]
    return tuple(named[:OFFENDERS_NAMED_MAX])


def _remarks(
    settings: VerifySettings, balance: Balance, outputs_before: int, uncommitted: int, behind: int | None
) -> Iterable[str]:
    inputs, outputs = ", ".join(settings.inputs), ", ".join(settings.outputs)
    if not balance.inputs:
        yield f"The input ({inputs}) holds no events of a load; nothing was proved. Is it the right topic?"
    elif not balance.outputs:
        yield f"The output ({outputs}) holds no committed record. Is it the right topic, and did the pipeline run?"
    elif not balance.seen:
        yield f"None of the {balance.outputs} outputs in {outputs} belongs to an input in {inputs}: a wrong topic?"
    if balance.inputs_repeated:
        yield "The input holds some ids more than once (two loads in one topic?); give each load ids of its own."
    if settings.follow_events is not None and balance.inputs < settings.follow_events:
        yield f"The input holds {balance.inputs} events; {settings.follow_events} were to be followed."
    if outputs_before and not settings.warm_up_events:
        yield f"The first {outputs_before} offsets of the output are older than this judge; they have no latency."
    if uncommitted:
        yield f"{uncommitted} offsets in the output belong to a transaction that is still open."
    if behind:
        yield f"The group {settings.group} has not committed the last {behind} offsets of the input."
