"""What is known of a device for a stage, for the record of a decision."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.gpu_offload.choosing import Standing
from millstream.gpu_offload.cost import break_even_core_us
from millstream.gpu_offload.curve import straight
from millstream.gpu_offload.decision import DeviceReport
from millstream.gpu_offload.question import Question
from millstream.gpu_offload.service_model import certain
from millstream.gpu_offload.watched_device import WatchedDevice


def report(now: float, device: WatchedDevice, standing: Mapping[str, Standing], question: Question) -> DeviceReport:
    """The report of one device. Its times are for the batches that its best candidate would have, or of one record."""
    spec = device.spec
    found = device.model.service()
    service = found or certain(straight(spec.fixed_floor_s if spec.kind == "gpu" else 0.0, 0.0))
    own = standing.get(spec.name)
    records = 1
    if own is not None:
        option = own.candidate.option
        records = max(1, min(option.records_max, round(question.rate_cost * max(option.wait_s, own.candidate.p50_s))))
    return DeviceReport(
        spec,
        device.state,
        "gives wrong answers" if device.is_wrong else device.why,
        found is not None,
        device.model.samples,
        service.curve.is_line,
        service.curve.fixed_s,
        service.curve.per_event_s,
        records,
        service.p50_s(records),
        service.p99_s(records),
        device.chance.is_there,
        device.chance.why,
        break_even_core_us(spec, question.core_price_per_hour, question.rate_cost),
        device.usage.idle_share(now, spec.servers),
    )
