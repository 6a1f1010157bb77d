"""A pipeline's settings, and what is left of a pipeline once it has passed all checks: what a runtime needs."""

from __future__ import annotations

from dataclasses import dataclass

from millstream.processor.codecs.fidelity import Fidelity
from millstream.processor.graph import Guarantee, MissingTopics, OnOffsetLost, Start
from millstream.processor.interfaces import Program, ValueCodec
from millstream.processor.policy import ErrorPolicy
from millstream.processor.stages.offload import OffloadStage
from millstream.processor.stalled import WatchPlan

DEFAULT_FIDELITY = Fidelity()


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelineSettings:
    """How a pipeline runs; None leaves the choice to the runtime."""

    shards: int | None = None
    guarantee: Guarantee = "exactly-once"
    on_error: ErrorPolicy = "stop"
    dead_letter_topic: str | None = None
    missing_topics: MissingTopics = "wait"
    fidelity: Fidelity = DEFAULT_FIDELITY
    commit_interval_ms: int | None = None
    stage_timeout_s: float = 60.0
    stage_attempts: int = 3


@dataclass(frozen=True, slots=True)
class InputTopic:
    """A topic that a pipeline reads, and where it begins when no offset is committed, or the committed one is gone."""

    topic: str
    start: Start
    on_offset_lost: OnOffsetLost


@dataclass(frozen=True, slots=True)
class BuiltPipeline:
    """A pipeline that has passed all checks.

    `dead_letter_topic` is None where no stage dead-letters; `output_topics` does not contain it.
    `codecs` has the codec of each input topic, `output_codecs` that of each write to an output topic. `offloads` are
    the stages that may run on a device, and `watch_plan` says how long stages may take.
    """

    name: str
    shards: int | None
    guarantee: Guarantee
    missing_topics: MissingTopics
    inputs: tuple[InputTopic, ...]
    output_topics: tuple[str, ...]
    dead_letter_topic: str | None
    settings: PipelineSettings
    program: Program
    codecs: dict[str, ValueCodec]
    output_codecs: dict[str, ValueCodec]
    offloads: tuple[OffloadStage, ...]
    watch_plan: WatchPlan

    @property
    def written_topics(self) -> tuple[str, ...]:
        """All topics that it writes to, the one for dead letters included."""
        letters = self.dead_letter_topic
        return self.output_topics if letters is None else (*self.output_topics, letters)
