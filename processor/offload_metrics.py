"""How a node's offload stages fare, as metrics and as status."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

from millstream.processor.membership_metrics import Family
from millstream.processor.offload_report import OffloadCounts, OffloadReport

Reports = Mapping[int, Mapping[str, OffloadReport]]

_COUNTERS: Final = {
    "decisions": ("reason", "Decisions about where an offload stage runs, by reason code."),
    "switches": ("switch", "Times an offload stage went to another device, as from>to."),
    "records": ("device", "Records that an offload stage computed, by device."),
    "busy_s": ("device", "Seconds that batches of an offload stage took, from bytes to bytes."),
    "fallbacks": ("reason", "Records that a device was to compute and the CPU did, by reason."),
    "probes": ("device", "Batches computed beside the work, to compare a device with the CPU."),
}
_NAMES: Final = {"busy_s": "busy_seconds"}


def offload_families(counts: Mapping[str, OffloadCounts], reports: Reports) -> Iterator[Family]:
    """The metric families; those of a node without offload stages have no samples."""
    for name, (label, text) in _COUNTERS.items():
        family = CounterMetricFamily(f"millstream_offload_{_NAMES.get(name, name)}", text, labels=["stage", label])
        for stage, counted in counts.items():
            for key, value in getattr(counted, name).items():
                family.add_metric([stage, key], value)
        yield family
    on_device = GaugeMetricFamily(
        "millstream_offload_on_device", "1 where a worker's offload stage runs on a device.", labels=["stage", "worker"]
    )
    idle = GaugeMetricFamily(
        "millstream_offload_idle_share",
        "The part of the time in which a device that a worker's stage holds did nothing for it.",
        labels=["stage", "worker"],
    )
    for worker, stages in reports.items():
        for stage, report in stages.items():
            on_device.add_metric([stage, str(worker)], int(report.runs_on != "cpu"))
            share = _idle_share(report)
            if share is not None:
                idle.add_metric([stage, str(worker)], share)
    yield from (on_device, idle)


def offload_status(counts: Mapping[str, OffloadCounts], reports: Reports) -> list[dict[str, Any]]:
    """Each offload stage: what was done for it on this node, and how it fares in each worker."""
    return [
        {
            "stage": stage,
            "counts": {name: getattr(counted, name) for name in _COUNTERS},
            "device_share": _device_share(counted),
            "workers": [
                {
                    "worker": worker,
                    "runs_on": report.runs_on,
                    "device": report.device or None,
                    "device_state": report.state,
                    "why": report.why,
                    "idle_share": _idle_share(report),
                    "decision": report.decision,
                    "explanation": report.explanation,
                }
                for worker, stages in sorted(reports.items())
                if (report := stages.get(stage)) is not None
            ],
        }
        for stage, counted in counts.items()
    ]


def _device_share(counts: OffloadCounts) -> float:
    """The part of the records that a device has computed."""
    everywhere = sum(counts.records.values())
    return 1.0 - counts.records.get("cpu", 0) / everywhere if everywhere else 0.0


def _idle_share(report: OffloadReport) -> float | None:
    if report.decision is None or not report.device:
        return None
    for device in report.decision["devices"]:
        if device["spec"]["kind"] == "gpu":
            share: float = device["idle_share"]
            return share
    return None
