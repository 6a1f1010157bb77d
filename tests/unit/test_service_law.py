"""The law that simulated devices follow."""

from __future__ import annotations

import numpy as np
import pytest

from millstream.gpu_offload.service_law import Outage, ServiceLaw, Slowness

LAW = ServiceLaw(fixed_s=250e-6, per_event_s=0.3e-6, per_byte_s=1e-9)


def test_without_noise_each_batch_takes_the_median() -> None:
    random = np.random.default_rng(1)
    assert LAW.draw_s(random, 1000, 100_000) == LAW.median_s(1000, 100_000) == pytest.approx(650e-6)


def test_noise_has_the_spread_and_the_tail_that_were_asked_for() -> None:
    law = ServiceLaw(fixed_s=1.0, per_event_s=0.0, spread=0.2, tail_share=0.01, tail_factor=50.0)
    drawn = law.noise(np.random.default_rng(2), 100_000)
    usual = drawn[drawn < 10.0]
    assert np.median(drawn) == pytest.approx(1.0, rel=0.01)
    assert np.std(np.log(usual)) == pytest.approx(0.2, rel=0.02)
    assert 1 - len(usual) / len(drawn) == pytest.approx(0.01, rel=0.15)


def test_the_same_seed_draws_the_same() -> None:
    law = ServiceLaw(fixed_s=1.0, per_event_s=0.1, spread=0.3)
    assert law.draw_s(np.random.default_rng(3), 7) == law.draw_s(np.random.default_rng(3), 7)


def test_a_device_is_slow_and_gone_for_as_long_as_it_was_said() -> None:
    law = ServiceLaw(fixed_s=1.0, per_event_s=0.0, slowness=[Slowness(10, 20, 3.0)], outages=[Outage(30, float("inf"))])
    assert [law.median_s(1, at_s=at) for at in (9.99, 10, 19.99, 20)] == [1.0, 3.0, 3.0, 1.0]
    assert [law.is_down(at) for at in (29.99, 30, 1e9)] == [False, True, True]
    assert law.changes_s == (10, 20, 30)
