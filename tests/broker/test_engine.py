"""Kafka to Kafka on a real broker: what goes in comes out once, as it was, wherever the run ends."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from outside import Outside

from millstream.processor import Pipeline
from millstream.processor.errors import OffsetLostError, PipelineError, StageError

pytestmark = pytest.mark.broker


def run(pipeline: Pipeline, outside: Outside, **arguments: Any) -> Any:
    """Run to the end of what is there."""
    arguments = {"until": "caught-up", "timeout_s": 60} | arguments
    return asyncio.run(pipeline.run(brokers=outside.bootstrap, **arguments))


def copy(outside: Outside, source: str, target: str, **settings: Any) -> Pipeline:
    pipeline = Pipeline(outside.unique("copy"), **settings)
    pipeline.read(source).write(target)
    return pipeline


@pytest.mark.parametrize("guarantee", ["exactly-once", "at-least-once"])
def test_a_copy_has_every_record_once_and_a_second_run_adds_nothing(outside: Outside, guarantee: Any) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    outside.load(source, 20_000)
    pipeline = copy(outside, source, target, guarantee=guarantee)
    assert run(pipeline, outside).counts.records_in == 20_000
    assert run(pipeline, outside).counts.records_in == 0
    verdict = outside.judge(source, target, group=pipeline.name)
    assert verdict.is_clean, verdict.as_json()


def test_keys_values_headers_and_timestamps_arrive_as_they_were_sent(outside: Outside) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    records = [(b"k", b"v"), (None, b"no key"), (b"", b"empty key"), (b"tombstone", None), (b"empty value", b"")]
    headers = [("h", b"1"), ("h", b"2"), ("null", None), ("empty", b"")]
    outside.send(source, records, partition=1, headers=headers, timestamp_ms=1_700_000_000_123)
    run(copy(outside, source, target), outside)
    arrived = {(m.key, m.value): m for m in outside.read(target)}
    assert arrived.keys() == set(records)
    for message in arrived.values():
        assert message.headers == tuple(headers)
        assert message.timestamp_ms == 1_700_000_000_123
    # A record without a key goes where its input partition says.
    assert arrived[None, b"no key"].partition == 1


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_compression_is_read(outside: Outside, codec: str) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    outside.send(source, [(b"%d" % i, b"x" * (i % 300)) for i in range(3000)], compression_type=codec, linger_ms=50)
    run(copy(outside, source, target), outside)
    assert {(m.key, m.value) for m in outside.read(target)} == {(b"%d" % i, b"x" * (i % 300)) for i in range(3000)}


def test_append_time_of_the_topic_is_carried_over(outside: Outside) -> None:
    source = outside.topic("in", message_timestamp_type="LogAppendTime")
    target = outside.topic("out")
    outside.send(source, [(b"k", b"v")], timestamp_ms=1_000)
    run(copy(outside, source, target), outside)
    assert outside.read(target)[0].timestamp_ms == outside.read(source)[0].timestamp_ms > 1_000


def test_records_of_aborted_transactions_are_not_read_and_their_markers_are_passed(outside: Outside) -> None:
    import confluent_kafka

    source, target = outside.topic("in", partitions=1), outside.topic("out", partitions=1)
    producer = confluent_kafka.Producer({**outside.kafka, "transactional.id": outside.unique("writer")})
    producer.init_transactions(20)
    for number in range(6):
        producer.begin_transaction()
        for i in range(50):
            producer.produce(source, b"%d-%d" % (number, i), b"k")
        producer.flush(20)
        if number % 2:
            producer.abort_transaction(20)
        else:
            producer.commit_transaction(20)
    pipeline = copy(outside, source, target)
    run(pipeline, outside)
    expected = [b"%d-%d" % (number, i) for number in (0, 2, 4) for i in range(50)]
    assert [m.value for m in outside.read(target)] == expected
    # The committed offset lies behind the last marker: lag reaches zero.
    assert run(pipeline, outside).counts.records_in == 0


def test_outputs_larger_than_one_batch_are_split_at_the_topics_limit(outside: Outside) -> None:
    source = outside.topic("in", partitions=1)
    target = outside.topic("out", partitions=1, max_message_bytes="4000")
    values = [b"%05d" % i + b"." * 300 for i in range(500)]
    outside.send(source, [(b"k", value) for value in values])
    run(copy(outside, source, target), outside)
    assert [m.value for m in outside.read(target)] == values


def test_a_record_too_large_for_its_topic_is_dead_lettered_and_its_neighbours_go_on(outside: Outside) -> None:
    source = outside.topic("in", partitions=1)
    target = outside.topic("out", partitions=1, max_message_bytes="2000")
    outside.send(source, [(b"a", b"small"), (b"b", b"x" * 3000), (b"c", b"small too")], headers=[("h", b"v")])
    pipeline = copy(outside, source, target, on_error="dead-letter")
    run(pipeline, outside)
    assert [m.key for m in outside.read(target)] == [b"a", b"c"]
    (letter,) = outside.read(f"{pipeline.name}.dead-letters")
    headers = dict(letter.headers)
    assert (letter.key, letter.value, headers["h"]) == (b"b", b"x" * 3000, b"v")
    assert headers["millstream.error.offset"] == b"1"
    assert headers["millstream.error.type"] == b"RecordTooLargeError"


def test_stop_commits_what_came_before_the_bad_record_and_names_it(outside: Outside) -> None:
    source, target = outside.topic("in", partitions=1), outside.topic("out", partitions=1)
    pipeline = Pipeline(outside.unique("stops"))
    pipeline.read(source, dict).map(lambda event: event["missing"]).write(target)
    outside.send(source, [(b"k", b'{"id":1}')])
    with pytest.raises(StageError, match=rf"{source}-0@0"):
        run(pipeline, outside)
    assert outside.read(target) == []


def test_all_records_filtered_out_still_advance_the_offsets(outside: Outside) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    outside.load(source, 1000)
    pipeline = Pipeline(outside.unique("nothing"))
    pipeline.read(source).filter(lambda _: False).write(target)
    assert run(pipeline, outside).counts.records_in == 1000
    assert run(pipeline, outside).counts.records_in == 0
    assert outside.read(target) == []


class Event(msgspec.Struct):
    id: int
    key: str
    seq: int
    sent_us: int
    amount: float
    country: str


class Charged(Event):
    fee: float


def test_typed_events_through_a_function_come_out_exactly_once(outside: Outside) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    outside.load(source, 5000)

    def charge(event: Event) -> Charged:
        return Charged(event.id, event.key, event.seq, event.sent_us, event.amount, event.country, event.amount / 100)

    pipeline = Pipeline(outside.unique("typed"))
    pipeline.read(source, Event).map(charge).write(target)
    run(pipeline, outside)
    assert outside.judge(source, target, group=pipeline.name).is_clean
    assert all("fee" in msgspec.json.decode(m.value) for m in outside.read(target) if m.value is not None)


def test_several_input_topics_share_a_pipeline(outside: Outside) -> None:
    one, two, target = outside.topic("one", partitions=2), outside.topic("two", partitions=5), outside.topic("out")
    outside.send(one, [(b"%d" % i, b"one") for i in range(100)])
    outside.send(two, [(b"%d" % i, b"two") for i in range(100)])
    pipeline = Pipeline(outside.unique("joined"))
    pipeline.read([one, two]).write(target)
    run(pipeline, outside)
    assert sorted(m.value or b"" for m in outside.read(target)) == [b"one"] * 100 + [b"two"] * 100


def test_missing_topics_are_created_where_the_pipeline_says_so(outside: Outside) -> None:
    source, target = outside.topic("in", partitions=5), outside.unique("out")
    outside.load(source, 100)
    run(copy(outside, source, target, missing_topics="create"), outside)
    assert outside.judge(source, target).is_clean
    assert len({m.partition for m in outside.read(target)}) > 1


def test_missing_topics_are_all_named_where_the_pipeline_says_fail(outside: Outside) -> None:
    pipeline = Pipeline(outside.unique("fails"), missing_topics="fail")
    stream = pipeline.read([outside.unique("no-1"), outside.unique("no-2")])
    stream.write(outside.unique("no-3"))
    with pytest.raises(PipelineError) as caught:
        run(pipeline, outside)
    assert len(caught.value.mistakes) == 3


async def test_a_pipeline_waits_for_its_topics(outside: Outside) -> None:
    source, target = outside.unique("in"), outside.unique("out")
    pipeline = copy(outside, source, target)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(pipeline.run(brokers=outside.bootstrap, events=100, timeout_s=60))
        await asyncio.sleep(0.5)
        assert not running.done()
        for name in ("in", "out"):
            await asyncio.to_thread(outside.topic, name)
        await asyncio.to_thread(outside.load, source, 100)
    assert running.result().counts.records_in == 100


def test_latest_leaves_out_what_was_there_before_and_nothing_after(outside: Outside) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    outside.send(source, [(b"%d" % i, b"before") for i in range(50)])
    pipeline = Pipeline(outside.unique("latest"))
    pipeline.read(source, start="latest").write(target)
    run(pipeline, outside)
    outside.send(source, [(b"%d" % i, b"after") for i in range(50)])
    run(pipeline, outside)
    assert [m.value for m in outside.read(target)] == [b"after"] * 50


def test_a_start_time_begins_at_the_first_record_at_or_after_it(outside: Outside) -> None:
    source, target = outside.topic("in", partitions=1), outside.topic("out", partitions=1)
    base_ms = 1_700_000_000_000
    for i in range(10):
        outside.send(source, [(b"k", b"%d" % i)], timestamp_ms=base_ms + i * 1000)
    pipeline = Pipeline(outside.unique("timed"))
    pipeline.read(source, start=datetime.fromtimestamp(base_ms / 1000 + 5, UTC)).write(target)
    run(pipeline, outside)
    assert [m.value for m in outside.read(target)] == [b"%d" % i for i in range(5, 10)]


async def test_partitions_added_while_running_are_read_from_their_first_record(outside: Outside) -> None:
    source, target = outside.topic("in", partitions=2), outside.topic("out")
    pipeline = Pipeline(outside.unique("grows"))
    pipeline.read(source, start="latest").write(target)
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(pipeline.run(brokers=outside.bootstrap, events=30, timeout_s=60))
        await asyncio.sleep(1)
        await asyncio.to_thread(outside.add_partitions, source, 4)
        await asyncio.sleep(0.2)
        for partition in (0, 2, 3):
            await asyncio.to_thread(outside.send, source, [(b"k", b"%d" % partition)] * 10, partition=partition)
    assert running.result().counts.records_in == 30
    assert sorted(m.value or b"" for m in outside.read(target)) == [b"0"] * 10 + [b"2"] * 10 + [b"3"] * 10


def test_an_offset_that_retention_has_passed_stops_the_pipeline_unless_told_otherwise(outside: Outside) -> None:
    source, target = outside.topic("in", partitions=1), outside.topic("out", partitions=1)
    outside.send(source, [(b"k", b"%d" % i) for i in range(10)])
    pipeline = copy(outside, source, target)
    run(pipeline, outside)
    outside.send(source, [(b"k", b"%d" % i) for i in range(10, 20)])
    outside.delete_records(source, {0: 15})
    with pytest.raises(OffsetLostError, match="on_offset_lost"):
        run(pipeline, outside)
    patient = Pipeline(pipeline.name)
    patient.read(source, on_offset_lost="earliest").write(target)
    run(patient, outside)
    assert [m.value for m in outside.read(target)] == [b"%d" % i for i in [*range(10), *range(15, 20)]]


def test_a_topic_made_anew_is_not_taken_for_the_old_one(outside: Outside) -> None:
    source, target = outside.topic("in", partitions=1), outside.topic("out", partitions=1)
    outside.send(source, [(b"k", b"old")] * 3)
    pipeline = copy(outside, source, target)
    run(pipeline, outside)
    outside.delete(source)
    outside.topic("in", partitions=1)
    outside.send(source, [(b"k", b"new")] * 5)
    with pytest.raises(OffsetLostError, match="deleted and created again"):
        run(pipeline, outside)


def test_a_different_number_of_shards_than_the_first_start_fixed_is_refused(outside: Outside) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    run(copy(outside, source, target, shards=2), outside)
    with pytest.raises(PipelineError, match="shards=3"):
        run(copy(outside, source, target, shards=3), outside)


def test_collected_outputs_are_what_was_committed(outside: Outside) -> None:
    source, target = outside.topic("in"), outside.topic("out")
    outside.send(source, [(b"%d" % i, b'{"n":%d}' % i) for i in range(20)])
    pipeline = Pipeline(outside.unique("collects"))
    pipeline.read(source, dict).map(lambda event: {"n": event["n"] * 2}).write(target)
    result = run(pipeline, outside, collect=True)
    assert sorted(output.value["n"] for output in result.outputs[target]) == [2 * i for i in range(20)]
    assert sorted(output.raw for output in result.outputs[target]) == sorted(m.value for m in outside.read(target))
