"""Three brokers: they replicate, one of them may go, and a pipeline goes through real changes of leaders.

How long Kafka 4.4.0 itself took to show a new leader, with its default timeouts, three nodes and the load on two cores:
0.2 s when the leader was stopped in order, 9.2 and 9.7 s when it was killed (its session is 9 s), 11.1 s paused and
11.7 s killed where it was the active controller too. The tests print it anew for each run (`pytest -s`), beside the
longest time for which committed output stood still: 1.3 s after the stop, 1 to 12 s after the others.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient
from outside import Outside

from millstream.connectors.kafka.development_cluster import NODE_IDS, DevelopmentCluster
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.produce import SendReport, send_all
from millstream.loadgen.schedule import Schedule, constant_arrivals
from millstream.loadgen.topics import TopicAdmin
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import VerifySettings, judge
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor import Pipeline

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

RATE = 2000
EVENTS = 20 * RATE
WAIT_S = 60


@pytest.fixture
def outside(three_brokers: DevelopmentCluster, unique: Callable[[str], str]) -> Outside:
    """The three nodes, seen by another client library."""
    return OutsideOfThree(three_brokers, unique)


class OutsideOfThree(Outside):
    """Topics are there for whichever node is asked, as soon as they are created."""

    def __init__(self, cluster: DevelopmentCluster, unique: Callable[[str], str]) -> None:
        super().__init__(cluster.bootstrap, unique)
        self._cluster = cluster

    def topic(self, purpose: str, partitions: int = 3, **settings: str) -> str:
        """A new topic that every node shows."""
        name = super().topic(purpose, partitions, **settings)
        self._cluster.await_topic(name)
        return name


def test_everything_is_replicated_and_the_helpers_agree_with_another_client(
    three_brokers: DevelopmentCluster, outside: Outside
) -> None:
    topic = outside.topic("in", partitions=6)
    outside.send(topic, [(b"k", b"v")], acks="all")
    assert [m.value for m in outside.read(topic)] == [b"v"]
    group, transactional_id = outside.unique("group"), outside.unique("transactions")
    assert three_brokers.group_coordinator(group) in NODE_IDS
    coordinator = three_brokers.transaction_coordinator(transactional_id)
    three_brokers.await_in_sync()

    topics = three_brokers.view().topics
    assert {"__consumer_offsets", "__transaction_state", topic} <= topics.keys()
    for partitions in topics.values():
        assert all(set(placement.replicas) == set(NODE_IDS) for placement in partitions.values())
    # Where Kafka keeps an id is public: the hash of its name, as Java computes it.
    states = topics["__transaction_state"]
    assert coordinator == states[java_hash(transactional_id) % len(states)].leader
    seen = AdminClient(dict(outside.kafka)).list_topics(topic, timeout=20).topics[topic].partitions
    assert {p: three_brokers.leader(topic, p) for p in range(6)} == {p: seen[p].leader for p in seen}
    assert three_brokers.active_controller() in NODE_IDS


def test_a_node_that_is_stopped_hands_over_and_comes_back_with_its_data(
    three_brokers: DevelopmentCluster, outside: Outside
) -> None:
    topic = outside.topic("in", partitions=1)
    leader = three_brokers.leader(topic, 0)
    address = three_brokers.node(leader).bootstrap
    three_brokers.stop_node(leader)
    assert three_brokers.running == tuple(node_id for node_id in NODE_IDS if node_id != leader)
    assert three_brokers.is_running
    assert three_brokers.leader(topic, 0) not in (leader, -1)
    outside.send(topic, [(b"k", b"while it was away")])
    three_brokers.start_node(leader)
    assert three_brokers.node(leader).bootstrap == address
    three_brokers.await_in_sync()
    assert [m.value for m in outside.read(topic)] == [b"while it was away"]


def test_a_paused_node_loses_its_leaderships_and_gets_back_in_sync(
    three_brokers: DevelopmentCluster, outside: Outside
) -> None:
    topic = outside.topic("in", partitions=1)
    leader = three_brokers.leader(topic, 0)
    three_brokers.pause(leader)
    try:
        assert leader in three_brokers.running
        await_change_of_leader(three_brokers, topic, leader)
        # The paused node still takes connections and answers nothing. librdkafka asks any node for its producer id and
        # would wait a minute for that one, so this client has none, and talks to the leader alone.
        others = ",".join(three_brokers.node(node).bootstrap for node in NODE_IDS if node != leader)
        outside.send(topic, [(b"k", b"v")], bootstrap_servers=others, enable_idempotence=False)
    finally:
        three_brokers.resume(leader)
    three_brokers.await_in_sync()
    assert [m.value for m in outside.read(topic)] == [b"v"]


def test_a_judge_begins_at_topics_that_not_every_node_knows_yet(
    three_brokers: DevelopmentCluster, unique: Callable[[str], str]
) -> None:
    kafka: dict[str, object] = {"bootstrap.servers": three_brokers.bootstrap}
    admin = TopicAdmin(kafka)
    for _ in range(5):
        topics = unique("in"), unique("out")
        for topic in topics:
            admin.create(topic, 12)
        settings = VerifySettings(
            inputs=topics[:1], outputs=topics[1:], group=unique("group"), follow_events=1, patience_s=0.2, settle_s=0
        )
        assert "holds no events of a load" in " ".join(judge(kafka, settings).remarks)


@pytest.mark.parametrize(
    ("end", "of"), [("stop_node", "leader"), ("kill", "leader"), ("kill", "coordinator"), ("pause", "leader")]
)
async def test_a_pipeline_goes_through_a_change_of_leaders_under_load(
    three_brokers: DevelopmentCluster, outside: Outside, end: str, of: str
) -> None:
    """Generator, pipeline (both on our own Kafka client) and judge all go through it: lost 0, doubled 0."""
    source, target = outside.topic("in"), outside.topic("out")
    pipeline = Pipeline(outside.unique("survivor"), shards=3)
    pipeline.read(source).write(target)
    async with asyncio.TaskGroup() as tasks:
        # Not to end at a count of events: a commit whose end went unanswered is not counted, even if it was made.
        running = tasks.create_task(pipeline.run(brokers=outside.bootstrap))
        sending = tasks.create_task(asyncio.to_thread(send, outside, source))
        await asyncio.sleep(3)
        judging = tasks.create_task(asyncio.to_thread(watch, outside, source, target, pipeline.name))
        await asyncio.sleep(3)
        if of == "leader":
            victim = three_brokers.leader(target, 0)
        else:
            victim = three_brokers.transaction_coordinator(f"{pipeline.name}.0")
        was_controller = victim == three_brokers.active_controller()
        changing = tasks.create_task(asyncio.to_thread(await_change_of_leader, three_brokers, target, victim))
        await asyncio.to_thread(getattr(three_brokers, end), victim)
        took_s = await changing
        assert not sending.done(), "the change must come while there is load"
        if end == "pause":
            three_brokers.resume(victim)
        else:
            await asyncio.to_thread(three_brokers.start_node, victim)
        verdict = await judging
        running.cancel()
    print(
        f"{end} of the {of}{', also the active controller' if was_controller else ''}: "
        f"Kafka's new leader after {took_s:.2f} s, committed output stood still for {verdict.output_pause_ms} ms"
    )
    assert sending.result().failed == 0, sending.result().first_error
    assert verdict.is_clean, verdict.as_json()


def send(outside: Outside, topic: str) -> SendReport:
    """The load, on its schedule."""
    workload = Workload(WorkloadSettings(keys=50))
    kafka = KafkaSettings(brokers=tuple(outside.bootstrap.split(",")))
    return send_all(kafka, topic, workload, Schedule(constant_arrivals(RATE), EVENTS))


def watch(outside: Outside, source: str, target: str, group: str) -> Verdict:
    """The judge, at the output while it grows."""
    settings = VerifySettings(
        inputs=(source,), outputs=(target,), group=group, follow_events=EVENTS, patience_s=WAIT_S, settle_s=1
    )
    return judge(outside.kafka, settings)


def await_change_of_leader(cluster: DevelopmentCluster, topic: str, old: int) -> float:
    """Until another node leads the partition of the topic that `old` leads now; answers how long that took, in s."""
    partition = next(p for p, placement in cluster.view(topic).topics[topic].items() if placement.leader == old)
    began = time.monotonic()
    while cluster.leader(topic, partition) in (old, -1):
        assert time.monotonic() < began + WAIT_S, f"node {old} still leads {topic}-{partition}"
        time.sleep(0.02)
    return time.monotonic() - began


def test_a_named_data_directory_is_the_same_cluster_again(tmp_path: Path) -> None:
    """It stops in order, too: nothing is left of its processes."""
    with DevelopmentCluster(data_directory=tmp_path) as cluster:
        outside = OutsideOfThree(cluster, lambda purpose: purpose)
        outside.send(outside.topic("kept"), [(b"k", b"v")])
        pids = [cluster.node(node_id).pid for node_id in NODE_IDS]
    assert not [pid for pid in pids if pid is not None and psutil.pid_exists(pid)]
    with DevelopmentCluster(data_directory=tmp_path) as again:
        assert [m.value for m in Outside(again.bootstrap, lambda purpose: purpose).read("kept")] == [b"v"]


def java_hash(text: str) -> int:
    """The magnitude of `String.hashCode`."""
    value = 0
    for character in text:
        value = (value * 31 + ord(character)) & 0xFFFFFFFF
    return min(value, (1 << 32) - value)
