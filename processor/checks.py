"""What can be wrong with a pipeline's settings, names and functions. Every check answers messages; none raises.

A message names the thing, the value and the remedy. `build` collects all of them into one PipelineError.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

from millstream.processor.built import PipelineSettings
from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.graph import EventSpec, Graph, ReadSpec, Spec, WriteSpec
from millstream.processor.policy import ErrorPolicy, as_policy

PIPELINE_NAME_MAX = 200  # what a pipeline owns in Kafka is named "<pipeline>.<something>", and 249 is Kafka's limit
TOPIC_NAME_MAX = 249
STAGE_NAME_MAX = 200
SHARDS_MAX = 10_000
CONCURRENCY_MAX = 100_000
TIMEOUT_MS_MAX = 3_600_000
COMMIT_INTERVAL_MS_MAX = 60_000
STAGE_TIMEOUT_S_MIN = 0.5  # the agent looks four times a second
STAGE_TIMEOUT_S_MAX = 3_600.0
# The first attempt only finds the batch; the record that is given up has hung alone.
STAGE_ATTEMPTS_MIN = 2
STAGE_ATTEMPTS_MAX = 100

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_mistake(kind: str, name: Any, length_max: int) -> str | None:
    """What is wrong with a name that Kafka has to accept."""
    if not isinstance(name, str) or not _LEGAL.fullmatch(name) or name in (".", ".."):
        return f"{kind} {name!r} is not a legal name: use letters, digits, '.', '_' and '-'"
    if len(name) > length_max:
        return f"{kind} {name[:20]!r}… has {len(name)} characters; at most {length_max} are possible"
    return None


def topic_mistakes(topics: Iterable[Any]) -> list[str]:
    """What is wrong with topic names."""
    return _found(name_mistake("topic", topic, TOPIC_NAME_MAX) for topic in topics)


def choice_mistake(setting: str, value: Any, choices: Sequence[str]) -> str | None:
    """A setting that must be one of a few words."""
    if value in choices:
        return None
    return f"{setting}={value!r} is unknown; use one of {', '.join(map(repr, choices))}"


def whole_number_mistake(setting: str, value: Any, least: int, most: int) -> str | None:
    """A setting that must be a whole number within bounds."""
    if isinstance(value, int) and not isinstance(value, bool) and least <= value <= most:
        return None
    return f"{setting}={value!r} must be a whole number from {least} to {most}"


def seconds_mistake(setting: str, value: Any, least: float, most: float) -> str | None:
    """A setting that must be a number of seconds within bounds."""
    if isinstance(value, int | float) and not isinstance(value, bool) and least <= value <= most:
        return None
    return f"{setting}={value!r} must be a number of seconds from {least:g} to {most:g}"


def stage_timeout_mistakes(timeout_s: Any) -> list[str]:
    """What is wrong with the time that a stage may take, where it has one of its own."""
    if timeout_s is None:
        return []
    return _found([seconds_mistake("stage_timeout_s", timeout_s, STAGE_TIMEOUT_S_MIN, STAGE_TIMEOUT_S_MAX)])


def settings_mistakes(name: Any, settings: PipelineSettings) -> list[str]:
    """What is wrong with a pipeline's name and settings."""
    found = [
        name_mistake("pipeline name", name, PIPELINE_NAME_MAX),
        choice_mistake("guarantee", settings.guarantee, ("exactly-once", "at-least-once")),
        choice_mistake("missing_topics", settings.missing_topics, ("wait", "create", "fail")),
        seconds_mistake("stage_timeout_s", settings.stage_timeout_s, STAGE_TIMEOUT_S_MIN, STAGE_TIMEOUT_S_MAX),
        whole_number_mistake("stage_attempts", settings.stage_attempts, STAGE_ATTEMPTS_MIN, STAGE_ATTEMPTS_MAX),
    ]
    if settings.shards is not None:
        found.append(whole_number_mistake("shards", settings.shards, 1, SHARDS_MAX))
    if settings.commit_interval_ms is not None:
        found.append(whole_number_mistake("commit_interval_ms", settings.commit_interval_ms, 1, COMMIT_INTERVAL_MS_MAX))
    if settings.dead_letter_topic is not None:
        found.append(name_mistake("dead_letter_topic", settings.dead_letter_topic, TOPIC_NAME_MAX))
    fidelity: object = settings.fidelity
    if not isinstance(fidelity, Fidelity):
        found.append(f"fidelity must be a Fidelity(...), not {type(fidelity).__name__}")
    return [*_found(found), *(f"on_error: {mistake}" for mistake in policy_mistakes(settings.on_error))]


def policy_mistakes(policy: ErrorPolicy | None) -> list[str]:
    """What is wrong with an error policy."""
    if policy is None:
        return []
    return as_policy(policy).mistakes()


def stage_name_mistakes(name: Any) -> list[str]:
    """What is wrong with a stage's given name; it goes into headers, logs and metrics."""
    if name is None or (isinstance(name, str) and name.isprintable() and 0 < len(name) <= STAGE_NAME_MAX):
        return []
    return [f"name={name!r} must be printable text of 1 to {STAGE_NAME_MAX} characters"]


def read_mistakes(spec: ReadSpec) -> list[str]:
    """What is wrong with a read by itself."""
    found = topic_mistakes(spec.topics) if spec.topics else ["reads no topic; name at least one"]
    if not isinstance(spec.start, datetime):
        mistake = choice_mistake("start", spec.start, ("earliest", "latest"))
        found += [] if mistake is None else [f"{mistake}, or a datetime with a time zone"]
    elif spec.start.tzinfo is None:
        found.append(f"start={spec.start} has no time zone; write for example datetime(..., tzinfo=timezone.utc)")
    found += _found(
        [
            choice_mistake("on_offset_lost", spec.on_offset_lost, ("stop", "earliest", "latest")),
            choice_mistake("tombstones", spec.tombstones, ("pass", "drop", "deliver")),
        ]
    )
    return found


def call_mistakes(spec: EventSpec, *, is_async: bool) -> list[str]:
    """What is wrong with the limits of an event stage."""
    found = _found([whole_number_mistake("concurrency", spec.concurrency, 1, CONCURRENCY_MAX)])
    if spec.timeout_ms is not None:
        found += _found([whole_number_mistake("timeout_ms", spec.timeout_ms, 1, TIMEOUT_MS_MAX)])
        if not is_async:
            found.append("timeout_ms works only with an async function: nothing can interrupt another one")
    return found


def graph_mistakes(graph: Graph, names: Sequence[str]) -> list[str]:
    """What is wrong with how the stages hang together."""
    found = []
    specs = [node.spec for node in graph.nodes]
    if not any(isinstance(spec, ReadSpec) for spec in specs):
        found.append("it reads nothing; begin with pipeline.read(...)")
    for name, count in Counter(names).items():
        if count > 1:
            found.append(f"{count} stages have the name {name!r}; give each its own name=")
    found += _dangling(graph, names)
    found += _topics_read_twice(specs)
    found += _loops(specs)
    return found


def _dangling(graph: Graph, names: Sequence[str]) -> list[str]:
    found = []
    for index, name in enumerate(names):
        ports = graph.ports(index)
        idle = [port for port in range(ports) if not graph.children(index, port)]
        # One side of a split may well be of no interest.
        if ports and len(idle) == ports:
            found.append(f"{name}: what it lets through goes nowhere; end the stream with .write(...), or remove it")
    return found


def _topics_read_twice(specs: Sequence[Spec]) -> list[str]:
    counts = Counter(topic for spec in specs if isinstance(spec, ReadSpec) for topic in spec.topics)
    return [
        f"topic {topic!r} is read {count} times; read it once and use the stream several times"
        for topic, count in counts.items()
        if count > 1
    ]


def _loops(specs: Sequence[Spec]) -> list[str]:
    inputs = {topic for spec in specs if isinstance(spec, ReadSpec) for topic in spec.topics}
    outputs = dict.fromkeys(topic for spec in specs if isinstance(spec, WriteSpec) for topic in spec.topics)
    return [
        f"topic {topic!r} is both read and written, which would feed the pipeline its own output for ever; "
        "write to another topic"
        for topic in outputs
        if topic in inputs
    ]


def _found(mistakes: Iterable[str | None]) -> list[str]:
    return [mistake for mistake in mistakes if mistake is not None]
