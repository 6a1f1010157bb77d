"""Our own client and librdkafka behind the fault proxy: everything works, and what is done to them is survived."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from log_contract import LogContract, connected, topic_of, write
from outside import Outside

from millstream.connectors.kafka.kafka_log import KafkaLog, LogSettings
from millstream.connectors.kafka.pytest_broker import Broker
from millstream.connectors.kafka.settings import KafkaSettings, split_brokers
from millstream.loadgen.fault_rules import Delay, Hold, Reset, Rule, Way, cut
from millstream.loadgen.kafka_frames import TO_TRANSACTION_COORDINATOR, Api
from millstream.loadgen.networks import Network, why_not
from millstream.loadgen.proxy_thread import ProxyThread
from millstream.processor import Pipeline
from millstream.processor.errors import OutcomeUnknownError

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

EVENTS = 20_000
PATIENCE_S = 30


@pytest.fixture
def proxy(broker: Broker) -> Iterator[ProxyThread]:
    with ProxyThread(broker.bootstrap, seed=11) as started:
        yield started


class ProxiedWorld:
    """The cluster as a client behind the proxy meets it."""

    def __init__(self, outside: Outside, bootstrap: str, **limits: Any) -> None:
        self._outside = outside
        self._brokers = split_brokers(bootstrap)
        self._request_timeout_ms = limits.pop("request_timeout_ms", 5_000)
        self._limits = limits
        self._names = 0

    def log(self, group: str) -> KafkaLog:
        kafka = KafkaSettings(brokers=self._brokers, request_timeout_ms=self._request_timeout_ms)
        return KafkaLog(kafka, LogSettings(group=group, exactly_once=True, **self._limits))

    def unique(self, name: str) -> str:
        self._names += 1
        return self._outside.unique(f"{name}-{self._names}")

    async def delete(self, topic: str) -> None:
        await asyncio.to_thread(self._outside.delete, topic)


class TestKafkaLogBehindTheProxy(LogContract):
    @pytest.fixture
    def world(self, outside: Outside, proxy: ProxyThread) -> ProxiedWorld:
        return ProxiedWorld(outside, proxy.bootstrap)


def copy(outside: Outside, **settings: Any) -> tuple[Pipeline, str, str]:
    """A pipeline with its input there, and its input and output topics."""
    source, target = outside.topic("in"), outside.topic("out")
    outside.load(source, EVENTS)
    pipeline = Pipeline(outside.unique("copy"), shards=3, **settings)
    pipeline.read(source).write(target)
    return pipeline, source, target


def run(pipeline: Pipeline, bootstrap: str, **arguments: Any) -> int:
    """Run until all is read; answers how many records were."""
    arguments = {"until": "caught-up", "timeout_s": 120} | arguments
    return asyncio.run(pipeline.run(brokers=bootstrap, **arguments)).counts.records_in


@pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
def test_from_where_only_the_proxy_can_be_reached_both_clients_work(broker: Broker, outside: Outside) -> None:
    pipeline, source, target = copy(outside)
    with Network() as network, ProxyThread(broker.bootstrap, host=network.host_address) as proxy:
        # An address of the broker's own that got through would lead nowhere from in there.
        assert network.call(lambda: run(pipeline, proxy.bootstrap)) == EVENTS
        network.call(lambda: roundtrip(proxy.bootstrap, outside))
    verdict = outside.judge(source, target, group=pipeline.name)
    assert verdict.is_clean, verdict.as_json()


def roundtrip(bootstrap: str, outside: Outside) -> None:
    """Write in a transaction, read as a member of a group, and ask for the cluster, all by librdkafka."""
    kafka: dict[str, object] = {"bootstrap.servers": bootstrap, "log_level": 0}
    topic = outside.topic("librdkafka", partitions=1)
    producer = confluent_kafka.Producer({**kafka, "transactional.id": outside.unique("writer")})
    producer.init_transactions(PATIENCE_S)
    producer.begin_transaction()
    for number in range(1000):
        producer.produce(topic, b"%d" % number)
    producer.commit_transaction(PATIENCE_S)
    consumer = confluent_kafka.Consumer(
        {**kafka, "group.id": outside.unique("readers"), "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([topic])
    values: list[bytes | None] = []
    while len(values) < 1000:
        found = consumer.consume(1000, PATIENCE_S)
        assert found, f"{len(values)} of 1000 records came"
        values += [message.value() for message in found]
    consumer.close()
    assert values == [b"%d" % number for number in range(1000)]
    admin = AdminClient(dict(kafka))
    nodes = admin.describe_cluster(request_timeout=PATIENCE_S).result().nodes
    assert [f"{node.host}:{node.port}" for node in nodes] == [bootstrap]


async def test_a_commit_whose_answer_is_held_is_of_unknown_outcome_and_is_there_once(
    proxy: ProxyThread, outside: Outside
) -> None:
    patient = ProxiedWorld(outside, proxy.bootstrap)
    world = ProxiedWorld(outside, proxy.bootstrap, request_timeout_ms=500, commit_timeout_s=2)
    group = world.unique("group")
    async with connected(patient, group) as log:
        # A broker that has just started takes its time over the first transaction.
        await write(log.shard(0), await log.shard(0).fence(), await topic_of(log, patient), b"warm")
    async with connected(world, group) as log:
        topic = await topic_of(log, world)
        shard = log.shard(0)
        permit = await shard.fence()
        fault = proxy.apply(Rule(Hold(), Way.ANSWERS, apis={Api.END_TXN}))
        with pytest.raises(OutcomeUnknownError, match="committing the transaction"):
            await write(shard, permit, topic, b"once")
        assert fault.hits > 1, "the end should have been tried again"
        # The fence settles what became of it; nobody has to answer the end for that.
        permit = await shard.fence()
        proxy.lift(fault)
        await write(shard, permit, topic, b"after")
        shard.close()
    assert [message.value for message in await asyncio.to_thread(outside.read, topic)] == [b"once", b"after"]


def test_answers_to_the_end_of_transactions_that_are_held_back_lose_and_double_nothing(
    proxy: ProxyThread, outside: Outside
) -> None:
    pipeline, source, target = copy(outside, commit_interval_ms=5)
    fault = proxy.apply(Rule(Hold(), Way.ANSWERS, apis={Api.END_TXN}))
    unknown = threading.Event()

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if "OutcomeUnknownError" in record.getMessage():
                unknown.set()

    def lift_when_it_is_seen() -> None:
        unknown.wait(PATIENCE_S)
        proxy.lift(fault)

    listener, lifting = Listener(), threading.Thread(target=lift_when_it_is_seen)
    logging.getLogger("millstream").addHandler(listener)
    lifting.start()
    try:
        run(pipeline, proxy.bootstrap)
    finally:
        logging.getLogger("millstream").removeHandler(listener)
        lifting.join()
    assert unknown.is_set()
    assert fault.hits > 0
    verdict = outside.judge(source, target, group=pipeline.name)
    assert verdict.is_clean, verdict.as_json()


def test_a_slow_coordinator_and_connections_that_break_lose_and_double_nothing(
    proxy: ProxyThread, outside: Outside
) -> None:
    pipeline, source, target = copy(outside, commit_interval_ms=5)
    slow = proxy.apply(Rule(Delay(0.2), Way.REQUESTS, apis=TO_TRANSACTION_COORDINATOR))
    breaking = proxy.apply(*(Rule(Reset(), way, probability=0.03) for way in Way))
    run(pipeline, proxy.bootstrap)
    assert slow.hits > 0
    assert breaking.hits > 0
    verdict = outside.judge(source, target, group=pipeline.name)
    assert verdict.is_clean, verdict.as_json()


def test_one_topic_can_be_cut_off_while_another_goes_on(proxy: ProxyThread, outside: Outside) -> None:
    beats, orders = outside.topic("beats", partitions=1), outside.topic("orders", partitions=1)
    writers = {
        topic: confluent_kafka.Producer({**outside.kafka, "bootstrap.servers": proxy.bootstrap})
        for topic in (beats, orders)
    }
    fault = proxy.apply(*cut(topics={beats}))
    for topic, writer in writers.items():
        writer.produce(topic, b"x")
    assert writers[orders].flush(PATIENCE_S) == 0
    assert writers[beats].flush(0.5) == 1
    assert outside.read(beats) == []
    proxy.lift(fault)
    # The connection is reset, and librdkafka sends what was not acknowledged once more.
    assert writers[beats].flush(PATIENCE_S) == 0
    assert [message.value for message in outside.read(beats)] == [b"x"]
