"""What runs with many nodes have shown, for people and for scripts."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from rich.table import Table

from millstream.loadgen.many_nodes_run import ManyNodesResult


def percentile(histogram: Counter[int], share: float) -> int | None:
    """The least value that a share of all is at or below; None of nothing."""
    left = share * histogram.total()
    for value in sorted(histogram):
        left -= histogram[value]
        if left <= 0:
            return value
    return max(histogram) if histogram else None


def cost_table(results: Sequence[ManyNodesResult]) -> Table:
    """What nodes use, beside each other by their number."""
    table = Table(title="What beats and ledger cost a node", title_justify="left")
    for title in ("nodes", "CPU, a process each", "CPU, sharing", "broker's CPU", "sent", "received", "packets"):
        table.add_column(title, justify="right", no_wrap=True)
    for result in results:
        cost = result.cost
        table.add_row(
            str(result.nodes),
            _percent(statistics.median(cost.lone_cpu)) if cost.lone_cpu else "-",
            _percent(cost.shared_cpu),
            _percent(cost.broker_cpu),
            f"{cost.sent / 1000:.1f} KB/s",
            f"{cost.received / 1000:.1f} KB/s",
            f"{cost.packets:.0f}/s",
        )
    return table


def beats_table(results: Sequence[ManyNodesResult]) -> Table:
    """What the witness saw."""
    table = Table(title="What one node sees of the beats (ms)", title_justify="left")
    for title in ("nodes", "beats", "gap p50", "p99", "max", "seen after p50", "p99", "max"):
        table.add_column(title, justify="right", no_wrap=True)
    for result in results:
        row = [_shown(percentile(seen, share)) for seen in (result.gaps_ms, result.visible_ms) for share in _SHARES]
        table.add_row(str(result.nodes), f"{result.gaps_ms.total():,}", *row)
    return table


_SHARES = (0.5, 0.99, 1.0)


def kills_table(results: Sequence[ManyNodesResult]) -> Table:
    """How those that were killed were found."""
    table = Table(title="From SIGKILL to the verdict in the ledger (ms)", title_justify="left")
    for title in ("nodes", "kills", "p50", "p99", "max", "> 500", "not found", "verdicts each", "mistaken", "agree"):
        table.add_column(title, justify="right", no_wrap=True)
    for result in results:
        found = detected_ms(result)
        p50, p99, longest = (_shown(percentile(found, share)) for share in _SHARES)
        table.add_row(
            str(result.nodes),
            str(len(result.kills)),
            *(p50, p99, longest),
            str(sum(count for ms, count in found.items() if ms > 500)),
            str(sum(killed.detected_s is None for killed in result.kills)),
            _counted(copies(result)),
            str(len(result.mistaken)),
            "yes" if result.has_agreed else "no",
        )
    return table


def detected_ms(result: ManyNodesResult) -> Counter[int]:
    """Times from kill to verdict, in whole milliseconds, rounded up."""
    return Counter(int(killed.detected_s * 1000) + 1 for killed in result.kills if killed.detected_s is not None)


def copies(result: ManyNodesResult) -> Counter[int]:
    """How many killed nodes have so many DEAD records."""
    return Counter(killed.verdicts for killed in result.kills)


def as_json(result: ManyNodesResult) -> dict[str, object]:
    """One object; CPU in percent of a core, bytes by the second and node."""
    cost = result.cost
    found = detected_ms(result)
    return {
        "nodes": result.nodes,
        "nodes_with_a_process_each": result.mortal,
        "seconds": result.seconds,
        "cpu_percent_per_node": {
            "process_each_median": round(statistics.median(cost.lone_cpu), 3) if cost.lone_cpu else None,
            "process_each": [round(value, 3) for value in cost.lone_cpu],
            "sharing": None if cost.shared_cpu is None else round(cost.shared_cpu, 3),
        },
        "broker_cpu_percent": None if cost.broker_cpu is None else round(cost.broker_cpu, 1),
        "sent_bytes_per_s": round(cost.sent),
        "received_bytes_per_s": round(cost.received),
        "packets_per_s": round(cost.packets, 1),
        "beat_gaps_ms": _summary(result.gaps_ms),
        "beat_visible_ms": _summary(result.visible_ms),
        "detected_ms": {**_summary(found), "over_500": sum(count for ms, count in found.items() if ms > 500)},
        "detected_each_ms": [
            None if killed.detected_s is None else round(killed.detected_s * 1000, 1) for killed in result.kills
        ],
        "kills": len(result.kills),
        "not_found": sum(killed.detected_s is None for killed in result.kills),
        "verdicts_per_kill": {str(number): count for number, count in sorted(copies(result).items())},
        "threshold_ms_median": round(statistics.median(killed.threshold_ms for killed in result.kills), 1),
        "mistaken": [
            {
                "node": seen.record.node,
                "by": seen.record.by,
                "silence_ms": round(seen.record.silence_ms, 1),
                "threshold_ms": round(seen.record.threshold_ms, 1),
            }
            for seen in result.mistaken
        ],
        "agreed": result.has_agreed,
    }


def _summary(histogram: Counter[int]) -> dict[str, int | None]:
    p50, p90, p99, longest = (percentile(histogram, share) for share in (0.5, 0.9, 0.99, 1.0))
    return {"count": histogram.total(), "p50": p50, "p90": p90, "p99": p99, "max": longest}


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f} %"


def _shown(value: int | None) -> str:
    return "-" if value is None else str(value)


def _counted(counter: Counter[int]) -> str:
    if set(counter) <= {1}:
        return "1"
    return ", ".join(f"{number}: {count} times" for number, count in sorted(counter.items()))
