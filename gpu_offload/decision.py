"""What a planner is told, what it can choose, and what it answers: records that can be kept, sent and explained.

Times are in seconds, prices in any one currency per hour. Nothing here is infinite, so that JSON can carry it:
`UNBOUNDED_S` stands for a delay that grows as long as the load lasts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

DeviceState: TypeAlias = Literal["absent", "warming", "ready", "suspect", "open", "half-open"]
Kind: TypeAlias = Literal["cpu", "gpu"]
Charge: TypeAlias = Literal["used", "leased", "share"]
ReasonCode: TypeAlias = Literal[
    "cheapest",
    "only-feasible",
    "slo-infeasible",
    "backlog",
    "never-win",
    "no-device",
    "unknown",
    "breach",
    "error",
    "dwell",
    "held",
]
By: TypeAlias = Literal["formula", "replay", "never-win"]

UNBOUNDED_S: Final = 3600.0


@dataclass(frozen=True, slots=True)
class DeviceSpec:
    """A device and its price.

    `charge` says what is paid for: "used" the seconds in which one of its `servers` is busy (the price is that of one
    server, a core), "leased" the whole device for as long as it is chosen, "share" the part of the device that is
    busy. `feeder_cores` are the cores that are busy while it is. `fixed_floor_s` is what a batch takes at least, as
    far as is known before anything was measured.
    """

    name: str
    kind: Kind
    price_per_hour: float
    charge: Charge
    servers: int = 1
    feeder_cores: float = 0.0
    fixed_floor_s: float = 60e-6


@dataclass(frozen=True, slots=True)
class Option:
    """Batches on a device: they are closed at so many records, or when the oldest has waited for so long."""

    device: str
    records_max: int
    wait_s: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """An option and what it would come to. The times are from an event's arrival to the end of its batch.

    `utilisation` is the part of the device's time that is busy, `load` the same if all batches were full, which is
    what decides whether it keeps up. `late_share` is that of events over the planner's limit. `verdict` is "ok" or
    why not.
    """

    option: Option
    p50_s: float
    p99_s: float
    utilisation: float
    load: float
    cost_per_million: float
    late_share: float
    verdict: str
    by: By

    @property
    def is_feasible(self) -> bool:
        return self.verdict == "ok"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What was asked of the planner. Rates in events per second, `backlog` in events that wait elsewhere.

    `rate_high` is the 95th percentile of the rates in tenths of a second; `rate_planned` is what must be coped with.
    """

    rate_now: float
    rate_high: float
    rate_planned: float
    backlog: int
    bytes_per_event: float
    budget_s: float
    states: dict[str, DeviceState]


@dataclass(frozen=True, slots=True)
class DeviceReport:
    """What is known of a device for this stage.

    A batch of n takes `fixed_s + per_event_s * n`; `p50_s` and `p99_s` are those of a batch of `records`. While
    `is_known` is False all of it is a prior: the floor of a batch, and no cost per event. `is_line` is False where no
    line fits and a table is used. `wanted` says whether the device could win at all, `why` why or why not.
    `break_even_core_us`: above that much CPU time per event the device would be the cheaper one at this rate; None for
    a CPU. `idle_share` is the part of the time since it was first chosen or leased in which it did nothing.
    """

    spec: DeviceSpec
    state: DeviceState
    state_why: str
    is_known: bool
    samples: int
    is_line: bool
    fixed_s: float
    per_event_s: float
    records: int
    p50_s: float
    p99_s: float
    wanted: bool
    why: str
    break_even_core_us: float | None
    idle_share: float


@dataclass(frozen=True, slots=True)
class Decision:
    """What was chosen and why, with all that the choice was made from. `candidates` holds a device's best ones."""

    at_s: float
    stage: str
    option: Option
    reason_code: ReasonCode
    reason: str
    inputs: Inputs
    candidates: tuple[Candidate, ...]
    switched: bool
    devices: tuple[DeviceReport, ...] = ()
    limit_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Probe:
    """A wish for a shadow run: a copy of about so many records that were answered already, on this device."""

    device: str
    records: int
    reason: str
