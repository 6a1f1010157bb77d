"""Whether a GPU could pay for a stage, from what its batches take on the CPU: at which rate, which batch size, and why
not. Pure arithmetic on measurements.

With f the seconds of the function for an event and c all that the stage takes of it, on one core:

    the CPU alone keeps up to       0.7 / c            events a second and core
    with a device that takes no time  0.7 / (c - f)    since values are read and written on the CPU all the same
    a device is quicker from        (floor - a) / f    records a batch, where the function takes a + f n
    a device is cheaper from        price / (core price * f)   events a second
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec
import numpy as np

from millstream.gpu_offload.dry_run import SizeTime
from millstream.gpu_offload.offload_settings import OffloadSettings
from millstream.gpu_offload.words import money, quantity, seconds

LOAD_MAX: Final = 0.7
FLOOR_S: Final = 60e-6


class Prospects(msgspec.Struct, frozen=True):
    """Times in seconds. The rates are events a second; `quicker_from` is in records a batch, None for never."""

    stage: str
    budget_s: float
    fixed_s: float
    per_event_s: float
    function_fixed_s: float
    function_per_event_s: float
    rate_max_cpu: float
    rate_max_device: float
    quicker_from: float | None
    cheaper_from: float | None
    verdict: str


@dataclass(frozen=True, slots=True)
class _Line:
    """A batch of n takes fixed + per_event n."""

    fixed_s: float
    per_event_s: float


def prospects(
    stage: str, budget_s: float, sizes: Sequence[SizeTime], settings: OffloadSettings, floor_s: float = FLOOR_S
) -> Prospects:
    """What the figures come to. `sizes` are at least one size of batch."""
    whole = _line([(one.records, one.quantile(0.5)) for one in sizes])
    function = _line([(one.records, one.compute_p50_s) for one in sizes])
    beside = max(1e-9, whole.per_event_s - function.per_event_s)
    quicker = (floor_s - function.fixed_s) / function.per_event_s if function.per_event_s > 0 else None
    price = settings.price_cpu_core_hour * function.per_event_s
    cheaper = settings.price_gpu_hour / price if price > 0 and settings.gpu_charge == "leased" else None
    found = Prospects(
        stage,
        budget_s,
        whole.fixed_s,
        whole.per_event_s,
        function.fixed_s,
        function.per_event_s,
        LOAD_MAX / whole.per_event_s,
        LOAD_MAX / beside,
        None if quicker is None else max(1.0, quicker),
        cheaper,
        "",
    )
    return msgspec.structs.replace(found, verdict=_verdict(found, settings, floor_s))


def _line(times: Sequence[tuple[int, float]]) -> _Line:
    """Weighted by 1 / time, so that small batches count as much as large ones."""
    records = np.array([one for one, _ in times], np.float64)
    found = np.maximum(1e-9, np.array([took for _, took in times]))
    if len(times) == 1:
        return _Line(0.0, float(found[0] / records[0]))
    terms = np.stack([np.ones(len(records)), records], axis=1) / found[:, None]
    fixed, per_event = np.linalg.lstsq(terms, np.ones(len(records)), rcond=None)[0]
    return _Line(max(0.0, float(fixed)), max(1e-10, float(per_event)))


def _verdict(found: Prospects, settings: OffloadSettings, floor_s: float) -> str:
    if floor_s >= found.budget_s:
        return f"No: a batch takes a device {seconds(floor_s)} at least, and the budget is {seconds(found.budget_s)}."
    share = found.function_per_event_s / found.per_event_s
    said = []
    if share < 0.5:
        said.append(
            f"The function is {share:.0%} of the stage, the rest is reading and writing values on the CPU: "
            "a device that took no time would save no more than that."
        )
    if found.cheaper_from is None:
        said.append("The device is paid for anyway, so only its busy time counts.")
    else:
        said.append(
            f"On cost it pays above {quantity(found.cheaper_from)} events/s, where the function alone keeps "
            f"{quantity(settings.price_gpu_hour / max(1e-9, settings.price_cpu_core_hour))} cores busy "
            f"({money(settings.price_gpu_hour)} an hour against {money(settings.price_cpu_core_hour)} for a core)."
        )
    if found.quicker_from is not None:
        rate = 2 * found.quicker_from / found.budget_s
        said.append(
            f"It is quicker from about {quantity(found.quicker_from)} records a batch; half of the budget brings so "
            f"many together above {quantity(rate)} events/s. A backlog brings them at any rate."
        )
    said.append(
        f"One core keeps up to {quantity(found.rate_max_cpu)} events/s of this stage, with a device up to "
        f"{quantity(found.rate_max_device)}."
    )
    return " ".join(said)
