"""The sentence that goes with a choice."""

from __future__ import annotations

from collections.abc import Mapping

from millstream.gpu_offload.choosing import Standing
from millstream.gpu_offload.decision import ReasonCode
from millstream.gpu_offload.question import Question
from millstream.gpu_offload.watched_device import WatchedDevice
from millstream.gpu_offload.words import money, quantity, seconds


def reason_for(
    code: ReasonCode,
    chosen: str,
    left: str,
    standing: Mapping[str, Standing],
    devices: Mapping[str, WatchedDevice],
    question: Question,
) -> str:
    """Why `chosen` was taken; `left` is the device before it, or the same."""
    own = standing.get(chosen)
    rest = "; ".join(_rival(name, devices[name], standing.get(name)) for name in devices if name != chosen)
    match code:
        case "unknown" if own is None:
            return f"{chosen} until it is measured"
        case "breach" if devices[left].fixed_s > question.budget_s:
            return (
                f"{left} takes {seconds(devices[left].fixed_s)} a batch, more than the whole budget: back to {chosen}"
            )
        case "breach":
            return f"{left} was late several times within a second while the load was as planned: back to {chosen}"
        case "error":
            return f"{left} is {_state(devices[left])}: back to {chosen}"
    assert own is not None  # only "unknown" has no candidates
    price = f"{chosen} at {money(own.cost_per_million)} per million events"
    predicted = f"p99 {seconds(own.candidate.p99_s)} of {seconds(question.limit_s)}"
    match code:
        case "backlog":
            return (
                f"{quantity(question.backlog)} events wait: {chosen} clears them in {seconds(own.candidate.p99_s)} "
                f"at {money(own.cost_per_million)} per million events; {rest}"
            )
        case "slo-infeasible":
            return (
                f"nothing keeps the budget; {chosen} is the quickest: {predicted}, it {own.candidate.verdict}; {rest}"
            )
        case "dwell":
            return f"{price}, {predicted}; another device would do, but it is too soon to change again; {rest}"
        case "held":
            return f"{price}, {predicted}; another device would be cheaper, but not by enough yet; {rest}"
        case "only-feasible":
            return f"{price}, {predicted}, keeps the budget alone; {rest}"
        case _:
            return f"{price}, {predicted}; {rest}" if rest else f"{price}, {predicted}"


def _rival(name: str, device: WatchedDevice, standing: Standing | None) -> str:
    if not device.is_usable:
        note = f"{name} is {_state(device)}"
    elif standing is None:
        note = f"{name} is not measured yet"
    elif standing.candidate.is_feasible:
        return f"{name} at {money(standing.cost_per_million)}"
    else:
        return f"{name} {standing.candidate.verdict}: p99 {seconds(standing.candidate.p99_s)}"
    return f"{note} and {'could win' if device.chance.is_there else 'could not win'}: {device.chance.why}"


def _state(device: WatchedDevice) -> str:
    if device.is_wrong:
        return "giving wrong answers"
    return f"{device.state} ({device.why})" if device.why else device.state
