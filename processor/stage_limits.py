"""What the agent is told about the stages of a pipeline, so that it can tell a slow one from one that hangs."""

from __future__ import annotations

from collections.abc import Sequence

from millstream.processor.built import PipelineSettings
from millstream.processor.graph import Graph, ReadSpec
from millstream.processor.program import Stage
from millstream.processor.stages.events import FilterStage, FlatMapStage, MapStage
from millstream.processor.stalled import StageLimit, WatchPlan


def watch_plan(
    graph: Graph, names: Sequence[str], stages: Sequence[Stage | None], settings: PipelineSettings
) -> WatchPlan:
    """All stages, numbered as in the graph, and the topics that are read."""
    limits = []
    for node, name, stage in zip(graph.nodes, names, stages, strict=True):
        own = None if isinstance(node.spec, ReadSpec) else node.spec.stage_timeout_s
        is_async = isinstance(stage, FilterStage | MapStage | FlatMapStage) and stage.caller.is_async
        limits.append(StageLimit(name, float(settings.stage_timeout_s if own is None else own), is_async))
    topics = [topic for node in graph.nodes if isinstance(node.spec, ReadSpec) for topic in node.spec.topics]
    return WatchPlan(limits, topics, settings.stage_attempts)
