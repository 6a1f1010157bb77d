"""A node's part in the membership as metrics for Prometheus, and for `/status`.

All names are there from the start of the agent, also before it takes part: a rate needs a zero to begin with.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final, TypeAlias

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily

from millstream.processor.measures import Histogram
from millstream.processor.membership_measures import (
    CAUSES,
    GAP_BOUNDS_S,
    MOVE_BOUNDS_S,
    TAKEOVER_BOUNDS_S,
    MembershipMeasures,
    MemberView,
)
from millstream.processor.status_view import Standbys, status_view

Family: TypeAlias = CounterMetricFamily | GaugeMetricFamily | HistogramMetricFamily

_OUTSIDE: Final = "outside"


def membership_families(measures: MembershipMeasures, member: MemberView | None) -> Iterator[Family]:
    """The metrics; `member` is None while the node takes no part yet."""
    yield from _standing(member)
    yield CounterMetricFamily("millstream_beats_sent", "Own beats.", value=member.beats_sent if member else 0)
    yield CounterMetricFamily("millstream_beats_heard", "Beats of other nodes.", value=measures.beats_heard)
    yield histogram_family(
        "millstream_beat_gap_seconds",
        "From beat to beat of each other node, as this one heard them.",
        GAP_BOUNDS_S,
        measures.beat_gaps,
    )
    yield from _verdicts(measures, member)
    yield CounterMetricFamily(
        "millstream_fences", "Times a shard of this node was fenced by another owner.", value=measures.fences
    )
    yield from _pauses(measures)


def _standing(member: MemberView | None) -> Iterator[Family]:
    membership = member.membership if member else None
    shards = (membership.facts.shards or 0) if membership else 0
    is_in = member is not None and member.phase in ("in", "leaving")
    in_doubt = member is not None and member.doubt is not None
    yield GaugeMetricFamily("millstream_member", "1 while the node is in the membership.", value=int(is_in))
    yield GaugeMetricFamily(
        "millstream_node_in_doubt",
        "1 while the node's own beats do not come back: it may have been found dead.",
        value=int(in_doubt),
    )
    nodes = len(membership.nodes) if membership else 0
    yield GaugeMetricFamily("millstream_nodes", "Live nodes of the pipeline, as this one has read.", value=nodes)
    unowned = shards - len(membership.holders) if membership else 0
    yield GaugeMetricFamily("millstream_shards_unowned", "Shards that nobody has.", value=unowned)
    info = GaugeMetricFamily("millstream_node_info", "What the node is called; always 1.", labels=["name", "zone"])
    if member is not None:
        info.add_metric([member.identity.name, member.identity.zone], 1)
    yield info


def _verdicts(measures: MembershipMeasures, member: MemberView | None) -> Iterator[Family]:
    yield CounterMetricFamily(
        "millstream_verdicts_written",
        "Times this node found another one dead; where several do, the first one counts.",
        value=measures.verdicts_written,
    )
    yield CounterMetricFamily(
        "millstream_verdicts_read", "Nodes that were found dead, as the ledger says.", value=measures.verdicts_read
    )
    yield CounterMetricFamily(
        "millstream_found_dead",
        "Times others found this node dead while it lived.",
        value=member.found_dead if member else 0,
    )
    yield CounterMetricFamily(
        "millstream_heard_after_death",
        "Nodes that were heard after they had been found dead: frozen for a while, or a mistake.",
        value=member.heard_after_death if member else 0,
    )


def _pauses(measures: MembershipMeasures) -> Iterator[Family]:
    taken = CounterMetricFamily(
        "millstream_shards_taken_over", "Shards that came here from a dead node or worker.", labels=["cause"]
    )
    takeovers = HistogramMetricFamily(
        "millstream_takeover_seconds",
        "From the last beat of a dead node, or the end of a worker, to the first commit of each shard taken over.",
        labels=["cause"],
    )
    for cause in CAUSES:
        taken.add_metric([cause], measures.taken_over[cause])
        pauses = measures.takeovers[cause]
        takeovers.add_metric([cause], buckets(TAKEOVER_BOUNDS_S, pauses), pauses.total)
    yield taken
    yield takeovers
    yield histogram_family(
        "millstream_move_seconds",
        "Planned moves: from when the last owner had let go to the first commit of a shard.",
        MOVE_BOUNDS_S,
        measures.moves,
    )


def histogram_family(name: str, help_text: str, bounds: Sequence[float], histogram: Histogram) -> HistogramMetricFamily:
    """A histogram without labels."""
    return HistogramMetricFamily(name, help_text, buckets=buckets(bounds, histogram), sum_value=histogram.total)


def buckets(bounds: Sequence[float], histogram: Histogram) -> list[tuple[str, float]]:
    """Upper bounds with all that lies below."""
    counts = histogram.counts or [0] * (len(bounds) + 1)
    total, found = 0, []
    for bound, count in zip([*map(str, bounds), "+Inf"], counts, strict=True):
        total += count
        found.append((bound, float(total)))
    return found


def node_status(measures: MembershipMeasures, member: MemberView | None) -> dict[str, Any]:
    """This node's own part, for `/status`."""
    counts = {
        "beats_heard": measures.beats_heard,
        "verdicts_written": measures.verdicts_written,
        "verdicts_read": measures.verdicts_read,
        "fences": measures.fences,
    }
    if member is None:
        return {"phase": _OUTSIDE, "doubt": None, **counts}
    return {
        "id": member.identity.node,
        "name": member.identity.name,
        "zone": member.identity.zone,
        "labels": list(member.identity.labels),
        "phase": member.phase,
        "doubt": member.doubt,
        "beats_sent": member.beats_sent,
        "found_dead": member.found_dead,
        "heard_after_death": member.heard_after_death,
        **counts,
    }


def membership_status(member: MemberView | None, standbys: Standbys, *, wall_ms: float) -> dict[str, Any] | None:
    """The whole membership as this node sees it, for `/status`; None while it takes no part.

    Standbys are told as far as they were found.
    """
    if member is None:
        return None
    standby = standbys.known(member.membership)
    return status_view(member.membership, member.beat_ages_s, standby, wall_ms=wall_ms).as_json()
