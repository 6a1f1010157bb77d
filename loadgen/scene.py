"""Where the demo and the load test take place: topics of their own, and a node with the demo's pipeline."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.loadgen.node_process import NodeProcess
from millstream.loadgen.produce import send_all
from millstream.loadgen.reading import KeyNumbers, TopicReader
from millstream.loadgen.schedule import Pace
from millstream.loadgen.seeing_out import Attended
from millstream.loadgen.topics import TopicAdmin
from millstream.loadgen.workload import Workload, WorkloadSettings
from millstream.processor.errors import UnavailableError

APP = "millstream.loadgen.demo_app:pipeline"
# A fresh clone compiles its kernels here; with warm caches it takes a few seconds.
WARM_UP_S_MAX = 240.0
_TICK_S = 0.1
_WARM_UP_KEYS = 100


@dataclass(frozen=True, slots=True)
class Scene:
    """Where everything of one run is."""

    kafka: KafkaSettings
    pipeline: str
    input: str
    output: str


def new_scene(
    kafka: KafkaSettings, purpose: str, partitions: int, topic_settings: Mapping[str, str] | None = None
) -> Scene:
    """Topics that are there, with names that no other run has."""
    name = f"millstream-{purpose}-{uuid.uuid4().hex[:8]}"
    scene = Scene(kafka, name, f"{name}-payments", f"{name}-charged")
    admin = TopicAdmin(kafka.confluent_arguments())
    for topic in (scene.input, scene.output):
        admin.create(topic, partitions, topic_settings)
    return scene


def node_of(
    scene: Scene,
    workers: int,
    seconds_max: int,
    environ: Mapping[str, str],
    directory: Path,
    name: str = "node",
    shards: int | None = None,
) -> NodeProcess:
    """A node, not started yet; `shards` None is the pipeline's own choice.

    After `seconds_max` it ends by its own clock: its starter may have been killed.
    """
    arguments = [APP, "--workers", str(workers), "--max-seconds", str(seconds_max), "--node-name", name]
    names = {
        "MILLSTREAM_BROKERS": ",".join(scene.kafka.brokers),
        "MILLSTREAM_DEMO_NAME": scene.pipeline,
        "MILLSTREAM_DEMO_INPUT": scene.input,
        "MILLSTREAM_DEMO_OUTPUT": scene.output,
    }
    if shards is not None:
        names["MILLSTREAM_DEMO_SHARDS"] = str(shards)
    return NodeProcess(arguments, {**environ, **names}, directory / f"{scene.pipeline}-{name}.log")


def warm_up(scene: Scene, node: Attended, pace: Pace, seed: int, tell: Callable[[int], None]) -> float:
    """Send the first events, and wait until the node has processed all of them; answers how many seconds that took.

    `tell` hears how many were processed. Raises UnavailableError, with the end of the node's log, where they are not
    processed in time.
    """
    started, events = time.monotonic(), pace.left
    # Keys of their own: what is measured later numbers the events of its keys from zero.
    workload = Workload(WorkloadSettings(seed=seed, keys=_WARM_UP_KEYS, key_prefix="warm"))
    send_all(scene.kafka, scene.input, workload, pace)
    seen = 0
    with TopicReader(scene.kafka.confluent_arguments(), [scene.output], KeyNumbers()) as reader:
        while seen < events:
            node.check()
            waited_s = time.monotonic() - started
            if waited_s > WARM_UP_S_MAX:
                raise UnavailableError(
                    f"the node processed {seen} of {events} events in {waited_s:.0f} s; "
                    f"its log ends with:\n{node.log_end()}"
                )
            tell(seen)
            seen += len(reader.read(_TICK_S))
    return time.monotonic() - started
