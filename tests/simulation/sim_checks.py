"""What must be true of any schedule, judged by what stands in Kafka and in the ledger, and by who asked for what.

Nothing here knows how the schedule came about. `effects` looks at committed records and offsets alone, as the reader of
a pipeline's output does; the others look at how it was done.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping

from sim_feed import Session
from sim_kafka import Event, Kafka, Record

from millstream.connectors.kafka.error_codes import Code
from millstream.connectors.kafka.transaction_requests import InitProducerIdRequest
from millstream.processor.partitions import TopicPartition

Effect = Callable[[bytes], Iterable[str]]
"""The topics to which the pipeline writes what becomes of an input."""


def effects(kafka: Kafka, effect: Effect) -> list[str]:
    """Every committed input has each of its effects once, in order; offsets only ever grew, up to the end."""
    return [*_exactly_once(kafka, effect), *_in_order(kafka), *_offsets(kafka)]


def _exactly_once(kafka: Kafka, effect: Effect) -> Iterable[str]:
    inputs = [record.value for _, records in kafka.committed("in") for _, record in records]
    expected = Counter((topic, value) for value in inputs for topic in effect(value))
    written = Counter((topic, value) for topic in ("out", "also") for value in _values(kafka, topic))
    if lost := expected - written:
        yield f"lost {lost.total()}: {sorted(lost)[:5]}"
    if doubled := written - expected:
        yield f"doubled {doubled.total()}: {sorted(doubled)[:5]}"


def _values(kafka: Kafka, topic: str) -> Iterable[bytes]:
    return (record.value for _, records in kafka.committed(topic) for _, record in records)


def _in_order(kafka: Kafka) -> Iterable[str]:
    """What goes from one partition to another stays in the order of the input's offsets."""
    at = {record.value: (place, offset) for place, records in kafka.committed("in") for offset, record in records}
    for topic in ("out", "also"):
        for target, records in kafka.committed(topic):
            yield from _order_of(target, [record for _, record in records], at)


def _order_of(
    target: TopicPartition, records: list[Record], at: Mapping[bytes, tuple[TopicPartition, int]]
) -> Iterable[str]:
    last: dict[TopicPartition, int] = defaultdict(lambda: -1)
    for record in records:
        if record.value not in at:
            yield f"{target}: {record.value!r} was never committed as input"
            continue
        place, offset = at[record.value]
        if offset < last[place]:
            yield f"{target}: {record.value!r}, at {offset} of {place}, comes after {last[place]}"
        last[place] = offset


def _offsets(kafka: Kafka) -> Iterable[str]:
    for event in kafka.history:
        if event.kind == "offset":
            place, before, after = event.what
            if after < before:
                yield f"the committed offset of {place} went back from {before} to {after}, at {event.time:.3f} (I3)"
    for partition, log in enumerate(kafka.topics["in"]):
        place = TopicPartition("in", partition)
        committed = kafka.offsets.get(place, 0)
        if log.visible(committed, log.stable_end):
            yield f"{place} has {log.stable_end} offsets, and {committed} is committed"


def transactions(kafka: Kafka) -> list[str]:
    """No transaction is without contents (I6), none is left open, and only the last to fence a shard commits for it."""
    found = [f"{e.session} ended a transaction without contents, at {e.time:.3f} (I6)" for e in _of(kafka, "empty")]
    found += [f"the transaction of {name} is open" for name in kafka.open_transactions if name.startswith("p.")]
    owner: dict[str, object] = {}
    for event in kafka.history:
        if event.kind == "fenced":
            owner[event.what[0]] = event.session
        elif event.kind == "committed" and owner.get(event.what[0].name) is not event.session:
            found.append(
                f"{event.session} committed for {event.what[0].name}, at {event.time:.3f}, but did not fence last"
            )
    return found


def _of(kafka: Kafka, kind: str) -> Iterable[Event]:
    return [event for event in kafka.history if event.kind == kind]


def fence_first(kafka: Kafka) -> list[str]:
    """The first request of every run of a shard is its fence, and nothing else is asked before that is done (I2)."""
    fenced: set[Session] = set()
    found = []
    for event in kafka.history:
        if event.kind == "fenced":
            fenced.add(event.session)
        elif event.kind in ("request", "open") and event.session is not None and event.session not in fenced:
            found += [] if isinstance(event.what, InitProducerIdRequest) else [_early(event)]
    return found


def _early(event: Event) -> str:
    return f"{event.session}: {type(event.what).__name__} before its fence, at {event.time:.3f} (I2)"


def nobody_was_refused(kafka: Kafka) -> list[str]:
    """Where shards are only moved, each owner has let go before the next one fences."""
    refusals = [
        event for event in kafka.history if event.kind == "refused" and event.what != Code.CONCURRENT_TRANSACTIONS
    ]
    return [f"{event.session} was refused at {event.time:.3f}: {event.what.name}" for event in refusals]
