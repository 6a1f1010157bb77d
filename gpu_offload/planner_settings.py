"""The planner's figures, each with its reason."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannerSettings:
    """All waits in seconds.

    A candidate's p99 may reach `margin` of the budget, and its load with full batches `load_max`: the rest is for what
    no model knows. A device that is busier than `stable_load` is taken not to keep up. Of the candidates that cost
    `near_cheapest` more than the cheapest at most, the one with the lowest p99 is taken.

    A decision is due every `interval_s`, and after `alarm_s` at the soonest when the load leaves what was planned for
    or a device's state changes. Events that waited elsewhere before they came are a backlog when they are more than
    come in within the budget; it is to be gone within `drain_s`.

    A dearer choice is left when what it costs too much has added up to `switch_gain_s` seconds of its own cost; gains
    of less than `gain_min` are noise. A device that was left for money is not chosen for money again for `dwell_s`.
    After one had to be left for trouble, it is not chosen again for `cool_down_s`, doubling up to `cool_down_max_s`.
    `breaches_max` late batches within a second are trouble, if they are more than a few percent of all. After a drop
    of the load the planner stays prepared for `patience_s`, doubling up to `patience_max_s` each time it turns out to
    have been too soon.

    Shadow runs take `probe_share` of a device's time at most; what is known is measured again after `stale_s`. A
    device takes about `start_s` until it is ready. Candidates may be `stretch` times the largest batch measured.
    """

    margin: float = 0.85
    load_max: float = 0.7
    stable_load: float = 0.9
    near_cheapest: float = 1.01
    interval_s: float = 1.0
    alarm_s: float = 0.05
    drain_s: float = 10.0
    switch_gain_s: float = 0.2
    gain_min: float = 0.02
    dwell_s: float = 10.0
    cool_down_s: float = 30.0
    cool_down_max_s: float = 600.0
    breaches_max: int = 3
    patience_s: float = 0.25
    patience_max_s: float = 10.0
    probe_share: float = 0.01
    stale_s: float = 300.0
    start_s: float = 5.0
    stretch: float = 4.0
