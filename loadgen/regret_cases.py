"""What planners are tried on: two sites and their traces, with what each trace is to show.

At the `leased` site a GPU costs what 88 cores cost, for as long as it is chosen: it is worth that only where eight
cores cannot keep the budget. At the `shared` site it is paid by its busy time, as one that is there anyway: which is
cheaper depends on the rate. Service times are those of gpu-notes' toy: 150 core-microseconds an event on eight cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from millstream.gpu_offload.decision import DeviceSpec
from millstream.gpu_offload.service_law import Outage, ServiceLaw, Slowness
from millstream.gpu_offload.traces import Arriving, Floats, Trace, bursts, diurnal, jumps, make_trace, ramp, steady
from millstream.gpu_offload.trial import Site

BUDGET_S: Final = 0.010
# The first seconds are not scored: nobody knows anything then, and the device is not there yet. Where the load is to
# change they have a busy time in them, so that the device is warm when it is needed.
LEAD_S: Final = 20
_BUSY_S: Final = (4, 13)

_CPU = DeviceSpec("cpu", "cpu", 0.32, "used")
_CPU_LAW = ServiceLaw(fixed_s=60e-6, per_event_s=18.75e-6, spread=0.15)
_GPU_LAW = ServiceLaw(fixed_s=250e-6, per_event_s=0.3e-6, spread=0.25)
_LEASED = DeviceSpec("gpu", "gpu", 3.5, "leased", feeder_cores=0.125)
_SHARED = DeviceSpec("gpu", "gpu", 3.5, "share", feeder_cores=0.125)


@dataclass(frozen=True, slots=True)
class Case:
    """One row of the report. `is_stationary`: the load and the devices stay as they are.

    `make` makes the trace when it is its turn: traces are large. `known_limit` says why something is missed in this
    case that is not to be reached.
    """

    name: str
    site: Site
    make: Callable[[], Trace]
    is_stationary: bool = False
    is_noise_free: bool = False
    is_cold: bool = False
    known_limit: str = ""


def site(
    gpu: DeviceSpec = _LEASED,
    *,
    cpu_law: ServiceLaw = _CPU_LAW,
    gpu_law: ServiceLaw = _GPU_LAW,
    budget_s: float = BUDGET_S,
) -> Site:
    """A site with eight cores and a GPU."""
    return Site(name=gpu.charge, budget_s=budget_s, devices=(_CPU, gpu), laws={"cpu": cpu_law, "gpu": gpu_law})


def quiet(law: ServiceLaw) -> ServiceLaw:
    """The same law without noise."""
    return ServiceLaw(fixed_s=law.fixed_s, per_event_s=law.per_event_s, per_byte_s=law.per_byte_s)


def steps_of(case: Case, trace: Trace) -> tuple[float, ...]:
    """When the load or a device changes at once."""
    changes = [at for law in case.site.laws.values() for at in law.changes_s if at < trace.duration_s]
    return tuple(sorted({*trace.steps_s, *changes}))


def _steady(name: str, place: Site, rate: float, seconds: int, seed: int, *, is_quiet: bool = False) -> Case:
    arriving: Arriving = "poisson"
    if is_quiet:
        arriving = "evenly"
        place = replace(place, laws={device: quiet(law) for device, law in place.laws.items()})

    def make() -> Trace:
        return make_trace(name, steady(rate, seconds), seed, arriving=arriving, scored_from_s=LEAD_S)

    return Case(name, place, make, is_stationary=True, is_noise_free=is_quiet)


def _changing(
    name: str, place: Site, rates: Floats, seed: int, *, is_cold: bool = False, known_limit: str = "", **more: Any
) -> Case:
    led = np.concatenate([steady(float(rates[0]), LEAD_S), rates])
    if not is_cold:
        led[_BUSY_S[0] * 100 : _BUSY_S[1] * 100] = max(60_000.0, float(rates.max()))

    def make() -> Trace:
        return make_trace(name, led, seed, steps_s=jumps(led), scored_from_s=LEAD_S, **more)

    return Case(name, place, make, is_cold=is_cold, known_limit=known_limit)


def _wide() -> Site:
    """Where a byte costs the CPU: events that grow are what changes."""
    return site(
        _SHARED,
        cpu_law=ServiceLaw(fixed_s=60e-6, per_event_s=5e-6, per_byte_s=50e-9, spread=0.15),
        gpu_law=ServiceLaw(fixed_s=250e-6, per_event_s=0.3e-6, per_byte_s=0.02e-9, spread=0.25),
    )


def _faulty(*, slowness: Sequence[Slowness] = (), outages: Sequence[Outage] = ()) -> Site:
    return site(_SHARED, gpu_law=replace(_GPU_LAW, slowness=slowness, outages=outages))


def _light() -> Site:
    """The case that motivated the product: a light stage, and a GPU that takes 35 ms for any batch."""
    return site(
        cpu_law=ServiceLaw(fixed_s=60e-6, per_event_s=1e-6, spread=0.15),
        gpu_law=ServiceLaw(fixed_s=35e-3, per_event_s=0.1e-6, spread=0.25),
    )


_UNKNOWN: Final = "the oracle knows when each burst begins and ends; to find out takes a part of each"
_UNSEEN: Final = "a device that does not answer is found out after 100 ms, and what waited has to be worked off"

# How long a trace lasts beside its lead, in the full form and in that of the tests.
_FULL_S: Final = 48
_SHORT_S: Final = 16


def cases(seed: int, *, short: bool = False) -> list[Case]:
    """All cases."""
    span = _SHORT_S if short else _FULL_S
    whole = LEAD_S + span
    leased, shared = site(), site(_SHARED)
    flaps = tuple(Outage(LEAD_S + 5 + 7 * number, LEAD_S + 7 + 7 * number) for number in range(span // 7))
    half = LEAD_S + span / 2
    return [
        _steady("steady 10K, no noise", leased, 10_000, whole, seed, is_quiet=True),
        _steady("steady 100K, no noise", leased, 100_000, whole, seed, is_quiet=True),
        _steady("steady 15K, no noise", shared, 15_000, whole, seed, is_quiet=True),
        _steady("steady 60K, no noise", shared, 60_000, whole, seed, is_quiet=True),
        _steady("steady 10K", leased, 10_000, whole, seed),
        _steady("steady 100K", leased, 100_000, whole, seed),
        _steady("steady 15K", shared, 15_000, whole, seed),
        _steady("steady 60K", shared, 60_000, whole, seed),
        _steady("steady 23.5K, equal costs", shared, 23_500, whole, seed),
        _steady("35 ms GPU, 50K", _light(), 50_000, whole, seed),
        _changing("ramp 5K-150K", leased, ramp(5_000, 150_000, span), seed),
        _changing("step up", leased, np.concatenate([steady(10_000, span // 2), steady(150_000, span // 2)]), seed),
        _changing(
            "step up, cold device",
            leased,
            np.concatenate([steady(10_000, span // 2), steady(150_000, span // 2)]),
            seed,
            is_cold=True,
        ),
        _changing("step down", leased, np.concatenate([steady(150_000, span // 2), steady(10_000, span // 2)]), seed),
        _changing("bursts 4x", leased, bursts(20_000, 80_000, span // 2, span // 2, 1), seed),
        _changing("bursts 4x", shared, bursts(12_000, 48_000, span // 2, span // 2, 1), seed),
        _changing("bursts 4x of 2 s", leased, bursts(20_000, 80_000, 6, 2, span // 8), seed, known_limit=_UNKNOWN),
        _changing("bursts 4x of 2 s", shared, bursts(12_000, 48_000, 6, 2, span // 8), seed, known_limit=_UNKNOWN),
        _changing("diurnal", leased, diurnal(5_000, 120_000, span, span / 2), seed),
        _changing("diurnal", shared, diurnal(5_000, 120_000, span, span / 2), seed),
        _changing("heavy tail", leased, steady(15_000, span), seed, arriving="clumps"),
        _changing("backlog 60 s", shared, steady(20_000, span), seed, lag=1_200_000, lag_at_s=LEAD_S + 5.0),
        _changing(
            "events grow 100-800 B",
            _wide(),
            steady(20_000, span),
            seed,
            bytes_per_event=np.concatenate([np.full(LEAD_S * 100, 100.0), np.linspace(100.0, 800.0, span * 100)]),
        ),
        _changing("GPU 3x slower", _faulty(slowness=(Slowness(half, 1e9, 3.0),)), steady(30_000, span), seed),
        _changing("GPU dead", _faulty(outages=(Outage(half, 1e9),)), steady(30_000, span), seed),
        _changing("GPU flapping", _faulty(outages=flaps), steady(30_000, span), seed, known_limit=_UNSEEN),
    ]
