"""A decision in words and numbers, one screen, for somebody who was woken by it."""

from __future__ import annotations

from millstream.gpu_offload.decision import Candidate, Decision, DeviceReport
from millstream.gpu_offload.words import money, quantity, seconds


def explain(decision: Decision) -> str:
    """The decision as text of several lines."""
    inputs = decision.inputs
    option = decision.option
    lines = [
        f"Stage {decision.stage!r} runs on {option.device}: batches of up to {option.records_max} records"
        + (f", or after {seconds(option.wait_s)}" if option.wait_s > 0.0 else ", as they come"),
        f"Why    {decision.reason_code}: {decision.reason}",
        "",
        (
            f"Asked  p99 within {seconds(inputs.budget_s)} (planned for {seconds(decision.limit_s)}); "
            f"{quantity(inputs.rate_now)} events/s now, {quantity(inputs.rate_high)} at peaks, "
            f"{quantity(inputs.backlog)} waiting, {quantity(inputs.bytes_per_event)} bytes each"
        ),
        "",
        "Devices",
    ]
    for device in decision.devices:
        lines += [f"  {line}" for line in _device(device)]
    lines += ["", f"  {'best candidates':<28}{'p50':>10}{'p99':>10}{'busy':>7}{'cost/M':>10}  verdict"]
    lines += [f"  {_candidate(one)}" for one in decision.candidates]
    return "\n".join(lines)


def _device(device: DeviceReport) -> list[str]:
    spec = device.spec
    if device.is_known:
        shape = "" if device.is_line else ", roughly: no line fits"
        measured = (
            f"a batch takes {seconds(device.fixed_s)} + {seconds(device.per_event_s)} per event{shape}; "
            f"{quantity(device.records)} records: p50 {seconds(device.p50_s)}, p99 {seconds(device.p99_s)} "
            f"({quantity(device.samples)} measured)"
        )
    elif spec.kind == "cpu":
        measured = f"not known yet ({device.samples} measured)"
    else:
        measured = f"not known yet ({device.samples} measured); taken to need {seconds(device.fixed_s)} at least"
    lines = [f"{spec.name}: {device.state}, {money(spec.price_per_hour)} an hour ({spec.charge}); {measured}"]
    if spec.kind == "gpu":
        lines.append(f"  {'could win' if device.wanted else 'could not win'}: {device.why}")
        if device.break_even_core_us is not None:
            lines.append(
                f"  at this rate it pays above {quantity(device.break_even_core_us)} core-µs per event; "
                f"idle {device.idle_share:.0%} of the time it was held"
            )
    return lines


def _candidate(one: Candidate) -> str:
    what = f"{one.option.device} {one.option.records_max} / {seconds(one.option.wait_s)}"
    return (
        f"{what:<28}{seconds(one.p50_s):>10}{seconds(one.p99_s):>10}{one.utilisation:>7.0%}"
        f"{money(one.cost_per_million):>10}  {one.verdict} ({one.by})"
    )
