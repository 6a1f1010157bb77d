"""Trials in virtual time: batches, latencies, cost and faults as by hand, and an oracle that is the best."""

# ruff: noqa: ARG002  # what stands in for a planner takes what it takes

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from millstream.gpu_offload.decision import DeviceSpec, DeviceState, Option
from millstream.gpu_offload.oracle import Follower, OraclePlan, Promise, available, consult
from millstream.gpu_offload.rivals import Aimd, Fixed, Saber
from millstream.gpu_offload.service_law import Outage, ServiceLaw
from millstream.gpu_offload.traces import make_trace, steady
from millstream.gpu_offload.trial import Site, Trial

CPU = DeviceSpec("cpu", "cpu", 3.6, "used")
GPU = DeviceSpec("gpu", "gpu", 36.0, "leased")
LAWS = {
    "cpu": ServiceLaw(fixed_s=100e-6, per_event_s=10e-6),
    "gpu": ServiceLaw(fixed_s=200e-6, per_event_s=1e-6),
}
SITE = Site(name="test", budget_s=0.010, devices=(CPU, GPU), laws=LAWS, start_s=1.0, switch_s=0.0)
SEED = 3


class Listening(Fixed):
    """Remembers what it was told."""

    listens = True

    def __init__(self, option: Option) -> None:
        super().__init__(option)
        self.arrivals = 0
        self.batches: list[tuple[str, int, float]] = []
        self.worst: list[float] = []
        self.states: list[tuple[float, DeviceState]] = []

    def arrived(self, now: float, records: int, byte_count: int = 0) -> None:
        self.arrivals += records

    def observed(self, now: float, device: str, records: int, seconds: float) -> None:
        self.batches.append((device, records, seconds))

    def latency(self, now: float, seconds: float) -> None:
        self.worst.append(seconds)

    def device_state(self, now: float, device: str, state: DeviceState, why: str = "") -> None:
        self.states.append((now, state))


def test_batches_close_at_their_size_or_their_age_and_cost_what_they_take() -> None:
    trace = make_trace("steady", steady(1000, 4), SEED, arriving="evenly")
    by_age = Listening(Option("cpu", 64, 0.0055))
    outcome = Trial(SITE, trace, SEED).run(by_age)
    # The oldest event waits 5.5 ms, in which five more come: batches of six take 160 us.
    assert {records for _, records, _ in by_age.batches[1:-1]} == {6}
    assert by_age.worst[3] == pytest.approx(0.005660, rel=1e-3)
    assert outcome.cost.sum() == pytest.approx(4000 / 6 * 160e-6 * 3.6 / 3600, rel=0.01)
    assert outcome.late.sum() == 0
    assert by_age.arrivals == 4000
    by_size = Listening(Option("cpu", 4, 1.0))
    Trial(SITE, trace, SEED).run(by_size)
    assert {records for _, records, _ in by_size.batches} == {4}
    assert max(by_size.worst) == pytest.approx(0.003 + 140e-6, rel=0.01)


def test_what_comes_faster_than_it_is_served_gets_late() -> None:
    trace = make_trace("steady", steady(200_000, 2), SEED, arriving="evenly")
    outcome = Trial(SITE, trace, SEED).run(Fixed(Option("cpu", 4096, 0.0)))
    assert outcome.late.sum() > 0.9 * len(trace.arrivals)
    assert outcome.events.sum() == len(trace.arrivals)


def test_a_leased_device_is_paid_while_it_is_chosen_and_used_when_it_is_ready() -> None:
    trace = make_trace("steady", steady(1000, 5), SEED, arriving="evenly")
    chooser = Listening(Option("gpu", 64, 0.005))
    outcome = Trial(SITE, trace, SEED).run(chooser)
    assert [state for _, state in chooser.states] == ["warming", "ready"]
    assert chooser.states[1][0] == pytest.approx(1.0, abs=0.02)
    assert chooser.batches[0][0] == "cpu"
    assert chooser.batches[-1][0] == "gpu"
    assert outcome.cost[3] == pytest.approx(36.0 / 3600, rel=1e-6)


def test_a_device_that_dies_costs_one_deadline_and_stays_away_until_it_has_cooled_down() -> None:
    law = replace(LAWS["gpu"], outages=(Outage(3.0, 20.0),))
    trace = make_trace("steady", steady(1000, 45), SEED, arriving="evenly")
    chooser = Listening(Option("gpu", 64, 0.005))
    outcome = Trial(replace(SITE, laws={**LAWS, "gpu": law}), trace, SEED).run(chooser)
    assert [state for _, state in chooser.states] == ["warming", "ready", "open", "half-open", "ready"]
    times = [at for at, _ in chooser.states]
    assert times[2] == pytest.approx(3.1, abs=0.02)
    assert times[3] == pytest.approx(33.1, abs=0.05)
    # A tenth of a second without answers, and what waited behind it.
    assert 90 <= outcome.late.sum() <= 110
    assert outcome.late[4:].sum() == 0


def test_the_oracle_takes_the_cheapest_that_keeps_the_promise_by_hand() -> None:
    """At 1,000 events/s the CPU; at 50,000 its load is over 0.7 with any batch, and only the leased device is left."""
    for rate, device in ((1000, "cpu"), (50_000, "gpu"), (90_000, "gpu")):
        site = replace(SITE, laws={**LAWS, "cpu": replace(LAWS["cpu"], per_event_s=15e-6)})
        trace = make_trace("steady", steady(rate, 4), SEED, arriving="evenly")
        plan = consult(site, trace, SEED)
        assert {option.device for option in plan.options[1:]} == {device}, rate


def test_no_fixed_option_is_cheaper_than_the_oracle_and_keeps_its_promise() -> None:
    trace = make_trace("steady", steady(8000, 6), SEED, arriving="poisson")
    noisy = {name: replace(law, spread=0.2) for name, law in LAWS.items()}
    site = replace(SITE, laws=noisy)
    trial = Trial(site, trace, SEED)
    best = trial.run(Follower(consult(site, trace, SEED)))
    assert best.late[1:].sum() == 0
    tried = 0
    for size in (8, 32, 64, 128, 512):
        for wait in (0.001, 0.003, 0.005, 0.0075):
            one = trial.run(Fixed(Option("cpu", size, wait)))
            load = 8000 * (100e-6 + 10e-6 * size) / size
            if one.p99_s <= Promise().margin * site.budget_s and load <= Promise().load_max:
                tried += 1
                assert one.cost[1:].sum() >= 0.995 * best.cost[1:].sum(), (size, wait)
    assert tried >= 5


def test_the_oracle_weighs_a_change_of_device_against_what_it_costs() -> None:
    """A minute of calm with one dear second in the middle is worth no change if changing costs more than that."""
    rates = np.concatenate([steady(1000, 4), steady(90_000, 4), steady(1000, 4)])
    trace = make_trace("one peak", rates, SEED, arriving="evenly")
    free = consult(SITE, trace, SEED)
    assert free.crossings_from(1) == 2
    dear = consult(replace(SITE, switch_s=1e4), trace, SEED)
    assert {option.device for option in dear.options} == {"gpu"}


def test_a_follower_plays_each_second_as_it_is_planned() -> None:
    options = [Option("cpu", 2**number, 0.005) for number in range(4)]
    outcome = Trial(SITE, make_trace("steady", steady(1000, 4), SEED), SEED).run(Follower(OraclePlan(options, [])))
    assert outcome.options[:3] == options[1:]


def test_a_device_that_is_down_or_kept_out_is_not_available_to_the_oracle_either() -> None:
    law = ServiceLaw(fixed_s=1e-3, per_event_s=0.0, outages=(Outage(5, 7), Outage(12, 14), Outage(50, 52)))
    there = available(law, 120)
    assert there[4]
    assert not any(there[5:35])
    assert all(there[35:50])
    # The second time the breaker keeps it out for twice as long.
    assert not any(there[50:110])
    assert there[110]


def test_a_lag_is_drained_and_counts_as_late_for_nobody() -> None:
    trace = make_trace("lag", steady(10_000, 20), SEED, arriving="evenly", lag=1_200_000, lag_at_s=5.0)
    outcome = Trial(SITE, trace, SEED).run(Fixed(Option("gpu", 4096, 0.005)))
    # 4,096 events take 4.3 ms, so that a second drains 954K of which 10K are new.
    assert outcome.drained_s == pytest.approx(1_200_000 / (4096 / 0.004296 - 10_000), rel=0.05)
    assert outcome.late[2:].sum() == 0
    plan = consult(SITE, trace, SEED)
    assert plan.options[5].device == "gpu"


def test_the_same_seed_gives_the_same_outcome() -> None:
    trace = make_trace("steady", steady(3000, 3), SEED)
    site = replace(SITE, laws={name: replace(law, spread=0.3) for name, law in LAWS.items()})
    one, same = (Trial(site, trace, 5).run(Fixed(Option("cpu", 64, 0.004))) for _ in range(2))
    assert np.array_equal(one.cost, same.cost)
    other = Trial(site, trace, 6).run(Fixed(Option("cpu", 64, 0.004)))
    assert not np.array_equal(one.cost, other.cost)


def test_aimd_grows_while_all_is_in_time_and_backs_off_by_a_tenth() -> None:
    one = Aimd("gpu", 0.010)
    for _ in range(5):
        one.observed(0.0, "gpu", one.option.records_max, 0.001)
    assert one.option.records_max == 60
    one.observed(0.0, "gpu", 60, 0.0095)
    assert one.option.records_max == 54
    # Batches that were not full say nothing of larger ones.
    one.observed(0.0, "gpu", 3, 0.001)
    assert one.option.records_max == 54


def test_saber_takes_the_faster_device_and_tries_the_other_after_ten() -> None:
    saber = Saber(Option("cpu", 100, 0.01), Option("gpu", 100, 0.01))
    saber.device_state(0.0, "gpu", "ready")
    taken = []
    for number in range(60):
        device = saber.option.device
        taken.append(device)
        saber.observed(number * 0.1, device, 100, 0.010 if device == "cpu" else 0.001)
    assert taken.count("gpu") > 40
    assert "cpu" in taken[20:]


def test_saber_shares_the_work_when_the_better_device_has_too_much_waiting() -> None:
    saber = Saber(Option("cpu", 100, 0.01), Option("gpu", 100, 0.01))
    saber.device_state(0.0, "gpu", "ready")
    for number, device in enumerate(["cpu", "gpu", "cpu", "gpu"]):
        saber.observed(number * 2.0, device, 100, 0.010 if device == "cpu" else 0.001)
    saber.backlog(9.0, 5000)
    saber.observed(9.0, "gpu", 100, 0.001)
    assert saber.option.device == "cpu"
