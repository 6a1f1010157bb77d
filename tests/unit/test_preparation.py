"""Before the first shard runs: topics exist or are told missing, and everyone agrees on the number of shards."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from memory_broker import MemoryBroker
from memory_log import MemoryLog
from virtual_time import simulated

from millstream.processor import Pipeline
from millstream.processor.built import BuiltPipeline
from millstream.processor.errors import PipelineError, RefusedError, UnavailableError
from millstream.processor.partitions import TopicPartition
from millstream.processor.preparation import Preparation, default_shards, prepare


def pipeline(*sources: str, **settings: Any) -> BuiltPipeline:
    made = Pipeline("p", **settings)
    made.read(list(sources or ("in",))).write("out")
    return made.build()


def broker_with(**topics: int) -> MemoryBroker:
    broker = MemoryBroker()
    for topic, partitions in topics.items():
        broker.create(topic, partitions)
    return broker


async def prepared(broker: MemoryBroker, built: BuiltPipeline, workers: int = 1) -> Preparation:
    return await prepare(MemoryLog(broker, "p"), built, workers)


@pytest.mark.parametrize(
    ("partitions", "workers", "shards"), [(1, 1, 1), (3, 1, 2), (100, 1, 2), (100, 8, 8), (3, 8, 3)]
)
@simulated
async def test_a_first_start_has_a_shard_for_each_worker_that_the_widest_topic_can_feed(
    partitions: int, workers: int, shards: int
) -> None:
    broker = broker_with(narrow=1, wide=partitions, out=1)
    found = await prepared(broker, pipeline("narrow", "wide"), workers)
    assert found.shards == shards == default_shards(partitions, workers)
    assert found.ledger.widths == {"narrow": 1, "wide": partitions}


@simulated
async def test_the_first_start_fixes_the_shards_and_a_later_wish_is_refused_with_both_numbers() -> None:
    broker = broker_with(**{"in": 6, "out": 1})
    assert (await prepared(broker, pipeline(shards=2))).shards == 2
    assert (await prepared(broker, pipeline())).shards == 2
    with pytest.raises(PipelineError, match="shards=3, but its first start fixed 2"):
        await prepared(broker, pipeline(shards=3))


@simulated
async def test_nodes_that_start_at_once_agree() -> None:
    for later_s in [i * 0.0003 for i in range(40)]:
        broker = broker_with(**{"in": 6, "out": 1})

        async def start(shards: int, after_s: float, broker: MemoryBroker = broker) -> Preparation | PipelineError:
            await asyncio.sleep(after_s)
            try:
                return await prepared(broker, pipeline(shards=shards))
            except PipelineError as error:
                return error

        first, second = await asyncio.gather(start(2, 0.001), start(3, later_s))
        fixed = (await prepared(broker, pipeline())).shards
        for found, wanted in ((first, 2), (second, 3)):
            assert isinstance(found, Preparation) == (wanted == fixed)


@simulated
async def test_a_second_start_adds_nothing_to_the_ledger() -> None:
    broker = broker_with(**{"in": 6, "out": 1})
    await prepared(broker, pipeline())
    size = len(broker.values("p.ledger"))
    await prepared(broker, pipeline())
    assert len(broker.values("p.ledger")) == size
    assert broker.topics["p.ledger"].settings["retention.ms"] == "-1"


@pytest.mark.parametrize(
    ("brokers", "replication", "in_sync"), [(1, 1, "1"), (2, 2, "1"), (3, 3, "2"), (4, 3, "2"), (50, 3, "2")]
)
@simulated
async def test_ledger_and_beats_have_as_many_copies_as_the_cluster_can_keep(
    brokers: int, replication: int, in_sync: str
) -> None:
    broker = broker_with(**{"in": 6, "out": 1})
    broker.brokers = brokers
    await prepared(broker, pipeline())
    ledger, beats = broker.topics["p.ledger"], broker.topics["p.beats"]
    assert (ledger.replication, beats.replication) == (replication, replication)
    assert (len(ledger.partitions), len(beats.partitions)) == (1, 1)
    assert (ledger.settings["min.insync.replicas"], beats.settings["min.insync.replicas"]) == (in_sync, "1")
    assert (ledger.settings["retention.ms"], beats.settings["retention.ms"]) == ("-1", "60000")


@simulated
async def test_topics_of_an_older_start_stay_as_they_are_and_beats_are_added() -> None:
    broker = broker_with(**{"in": 6, "out": 1, "p.ledger": 1})
    broker.brokers = 3
    await prepared(broker, pipeline())
    assert (broker.topics["p.ledger"].replication, broker.topics["p.ledger"].settings) == (None, {})
    assert broker.topics["p.beats"].replication == 3
    broker.topics["p.beats"].settings = {"retention.ms": "1"}
    await prepared(broker, pipeline())
    assert broker.topics["p.beats"].settings == {"retention.ms": "1"}


@simulated
async def test_a_topic_that_is_read_later_gets_its_width_then_and_others_keep_theirs() -> None:
    broker = broker_with(one=1, two=2, out=1)
    await prepared(broker, pipeline("one"))
    broker.add_partitions("one", 5)
    assert (await prepared(broker, pipeline("one", "two"))).ledger.widths == {"one": 1, "two": 2}


@simulated
async def test_missing_topics_are_all_named_where_the_pipeline_says_fail() -> None:
    broker = broker_with(here=1)
    with pytest.raises(PipelineError) as caught:
        await prepared(broker, pipeline("here", "gone", missing_topics="fail"))
    assert [mistake.split("'")[1] for mistake in caught.value.mistakes] == ["gone", "out"]
    assert "p.ledger" not in broker.topics


@simulated
async def test_missing_topics_are_created_as_wide_as_the_widest_input() -> None:
    broker = broker_with(here=5)
    await prepared(broker, pipeline("here", "gone", missing_topics="create"))
    assert len(broker.topics["gone"].partitions) == len(broker.topics["out"].partitions) == 5


@simulated
async def test_topics_that_are_awaited_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    broker = broker_with()
    async with asyncio.TaskGroup() as tasks:
        preparing = tasks.create_task(prepared(broker, pipeline()))
        await asyncio.sleep(60)
        broker.create("in", 2)
        await asyncio.sleep(60)
        assert not preparing.done()
        broker.create("out", 1)
    assert preparing.result().shards == 2
    assert [record.getMessage() for record in caplog.records] == [
        "topics.awaited topics=in,out",
        "topics.awaited topics=out",
    ]


@pytest.mark.parametrize("step", ["topics", "brokers", "create", "append-ledger", "read-ledger"])
@simulated
async def test_cancelling_ends_it_wherever_it_waits(step: str) -> None:
    log = MemoryLog(broker_with(**{"in": 1, "out": 1}), "p")
    reached = log.trouble.hold(step)
    preparing = asyncio.create_task(prepare(log, pipeline()))
    await reached.wait()
    preparing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await preparing


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("step", ["topics", "brokers", "create", "append-ledger", "read-ledger"])
@simulated
async def test_trouble_is_passed_on_and_the_next_attempt_succeeds(step: str, after: bool) -> None:
    broker = broker_with(**{"in": 2, "out": 1})
    log = MemoryLog(broker, "p")
    log.trouble.fail(step, UnavailableError("not now"), after=after)
    with pytest.raises(UnavailableError):
        await prepare(log, pipeline())
    assert (await prepare(log, pipeline())).shards == 2


@simulated
async def test_dead_letters_get_a_topic_that_takes_the_largest_input_and_its_error_headers() -> None:
    broker = broker_with(one=3, two=1, out=1)
    broker.topics["two"].bytes_max = 5_000_000
    await prepared(broker, pipeline("one", "two", on_error="dead-letter"))
    letters = broker.topics["p.dead-letters"]
    assert len(letters.partitions) == 3
    assert letters.bytes_max > 5_000_000


@simulated
async def test_a_topic_of_something_else_in_the_ledgers_place_is_refused() -> None:
    broker = broker_with(**{"in": 1, "out": 1, "p.ledger": 1})
    broker.send("p.ledger", 0, [b"an order for 3 hats"])
    with pytest.raises(RefusedError) as caught:
        await prepared(broker, pipeline())
    assert "hats" not in str(caught.value)
    assert len(broker.partition(TopicPartition("p.ledger", 0)).entries) == 1
