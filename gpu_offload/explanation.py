"""A decision in words and numbers, one screen, for somebody who was woken by it."""

from __future__ import annotations

import textwrap
from typing import Final

from millstream.gpu_offload.decision import Candidate, Decision, DeviceReport
from millstream.gpu_offload.words import money, quantity, seconds

_WIDTH: Final = 118


def explain(decision: Decision) -> str:
    """The decision as text of several lines."""
    inputs = decision.inputs
    option = decision.option
    closing = f", or after {seconds(option.wait_s)}" if option.wait_s > 0.0 else ", as they come"
    asked = (
        f"p99 within {seconds(inputs.budget_s)} (planned for {seconds(decision.limit_s)}); "
        f"{quantity(inputs.rate_now)} events/s now, {quantity(inputs.rate_high)} at peaks, "
        f"{quantity(inputs.backlog)} waiting, {quantity(inputs.bytes_per_event)} bytes each"
    )
    lines = [
        f"Stage {decision.stage!r} runs on {option.device}: batches of up to {option.records_max} records{closing}",
        *_wrapped("Why    ", f"{decision.reason_code}: {decision.reason}"),
        *_wrapped("Asked  ", asked),
        "",
        "Devices",
    ]
    for device in decision.devices:
        lines += _device(device)
    lines += ["", f"  {'best candidates':<28}{'p50':>10}{'p99':>10}{'busy':>7}{'cost/M':>10}  verdict"]
    lines += [f"  {_candidate(one)}" for one in decision.candidates]
    return "\n".join(lines)


def _device(device: DeviceReport) -> list[str]:
    spec = device.spec
    state = f"{device.state} ({device.state_why})" if device.state_why else device.state
    price = f"{money(spec.price_per_hour)} an hour ({spec.charge})"
    lines = _wrapped(f"  {spec.name}: ", f"{state}, {price}; {_measured(device)}")
    if spec.kind == "gpu":
        lines += _wrapped("    ", f"{'could win' if device.wanted else 'could not win'}: {device.why}")
        if device.break_even_core_us is not None:
            pays = f"at this rate it pays above {quantity(device.break_even_core_us)} core-µs per event"
            lines += _wrapped("    ", f"{pays}; idle for {device.idle_share:.0%} of the time it was held")
    return lines


def _measured(device: DeviceReport) -> str:
    if not device.is_known:
        floor = f"; taken to need {seconds(device.fixed_s)} a batch at least" if device.spec.kind == "gpu" else ""
        return f"not known yet ({device.samples} measured){floor}"
    roughly = "" if device.is_line else "roughly "
    line = f"a batch takes {roughly}{seconds(device.fixed_s)} + {seconds(device.per_event_s)} per event"
    times = f"p50 {seconds(device.p50_s)}, p99 {seconds(device.p99_s)} for {quantity(device.records)} records"
    return f"{line}; {times} ({quantity(device.samples)} measured)"


def _wrapped(head: str, text: str) -> list[str]:
    return textwrap.wrap(text, _WIDTH, initial_indent=head, subsequent_indent=" " * len(head))


def _candidate(one: Candidate) -> str:
    what = f"{one.option.device} {one.option.records_max} / {seconds(one.option.wait_s)}"
    return (
        f"{what:<28}{seconds(one.p50_s):>10}{seconds(one.p99_s):>10}{one.utilisation:>7.0%}"
        f"{money(one.cost_per_million):>10}  {one.verdict} ({one.by})"
    )
