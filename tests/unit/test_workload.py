"""The generator's events: the same for the same seed, valid, numbered, and of the size asked for."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.loadgen.workload import KeyDistribution, Workload, WorkloadSettings
from millstream.processor.columns import Int64s
from millstream.processor.errors import SettingsError


def _times(count: int, start_us: int = 1_730_000_000_000_000) -> Int64s:
    return np.arange(start_us, start_us + count, dtype=np.int64)


def test_an_event_has_the_documented_fields() -> None:
    events = Workload(WorkloadSettings(seed=1, keys=50)).next_events(_times(100))
    for index, (key, value) in enumerate(zip(events.keys, events.values, strict=True)):
        event = orjson.loads(value)
        assert list(event) == ["id", "key", "seq", "sent_us", "amount", "country"]
        assert event["id"] == index
        assert event["key"].encode() == key
        assert event["sent_us"] == 1_730_000_000_000_000 + index
        assert 0 <= event["amount"] < 1000
        assert len(event["country"]) == 2


@given(sizes=st.lists(st.integers(0, 40), max_size=8), seed=st.integers(0, 2**64))
@settings(max_examples=30, deadline=None)
def test_the_borders_of_batches_change_nothing(sizes: list[int], seed: int) -> None:
    chosen = WorkloadSettings(seed=seed, keys=7)
    whole = Workload(chosen).next_events(_times(sum(sizes)))
    parts = Workload(chosen)
    values = [
        value
        for end, size in zip(accumulate(sizes), sizes, strict=True)
        for value in parts.next_events(_times(sum(sizes))[end - size : end]).values
    ]
    assert values == whole.values


def test_another_seed_makes_other_events() -> None:
    one = Workload(WorkloadSettings(seed=1)).next_events(_times(100))
    other = Workload(WorkloadSettings(seed=2)).next_events(_times(100))
    assert one.keys != other.keys


def test_seq_counts_the_events_of_each_key() -> None:
    seen: Counter[str] = Counter()
    for value in Workload(WorkloadSettings(keys=13)).next_events(_times(2000)).values:
        event = orjson.loads(value)
        assert event["seq"] == seen[event["key"]]
        seen[event["key"]] += 1
    assert len(seen) == 13
    # Uniform keys: about 154 each; five standard deviations are about 60.
    assert min(seen.values()) > 90
    assert max(seen.values()) < 220


@pytest.mark.parametrize("payload_bytes", [0, 90, 110, 120, 150, 4000])
def test_events_are_padded_to_exactly_the_size_asked_for_where_the_pad_fits(payload_bytes: int) -> None:
    bare = Workload(WorkloadSettings(payload_bytes=0)).next_events(_times(500)).values
    padded = Workload(WorkloadSettings(payload_bytes=payload_bytes)).next_events(_times(500)).values
    for plain, value in zip(bare, padded, strict=True):
        fits = payload_bytes - len(plain) >= len(',"pad":""')
        assert len(value) == (payload_bytes if fits else len(plain))
        event = orjson.loads(value)
        event.pop("pad", None)
        assert event == orjson.loads(plain)


def test_the_largest_numbers_fit() -> None:
    largest = WorkloadSettings(first_id=2**62, keys=10, key_prefix="k" * 32, payload_bytes=0)
    workload = Workload(largest)
    (value,) = workload.next_events(np.array([2**62], np.int64)).values
    event = orjson.loads(value)
    assert (event["id"], event["sent_us"]) == (2**62, 2**62)
    assert len(value) < workload.event_bytes_max


def test_every_mistake_in_the_settings_is_reported_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        WorkloadSettings(seed=-1, keys=0, payload_bytes=-5, first_id=-1, key_prefix='"')
    assert len(caught.value.mistakes) == 5


def test_zipf_keys_have_shares_that_fall_with_their_rank() -> None:
    settings = WorkloadSettings(keys=100, key_distribution=KeyDistribution.ZIPF, zipf_s=1.1)
    counted = Counter(Workload(settings).next_events(_times(100_000)).keys)
    shares = 1 / np.arange(1, 101) ** 1.1
    shares /= shares.sum()
    for rank in (0, 1, 5, 20):
        # Five standard deviations of a count around its expectation.
        expected = 100_000 * shares[rank]
        assert abs(counted[f"k-{rank:04d}".encode()] - expected) < 5 * expected**0.5
    assert sum(counted.values()) == 100_000


def test_sizes_are_drawn_evenly_from_their_range_and_events_stay_the_same_otherwise() -> None:
    plain = Workload(WorkloadSettings(payload_bytes=0)).next_events(_times(5_000)).values
    drawn = Workload(WorkloadSettings(payload_bytes=200, payload_bytes_max=299)).next_events(_times(5_000)).values
    sizes = Counter(len(value or b"") for value in drawn)
    assert set(sizes) == set(range(200, 300))
    assert max(sizes.values()) < 100
    for one, other in zip(plain, drawn, strict=True):
        event = orjson.loads(other or b"")
        del event["pad"]
        assert event == orjson.loads(one or b"")


def test_the_borders_of_batches_change_nothing_for_drawn_keys_and_sizes() -> None:
    settings = WorkloadSettings(key_distribution=KeyDistribution.ZIPF, payload_bytes=90, payload_bytes_max=300)
    whole, parts = Workload(settings).next_events(_times(300)), Workload(settings)
    first, second = parts.next_events(_times(300)[:77]), parts.next_events(_times(300)[77:])
    assert [*first.values, *second.values] == whole.values
    assert [*first.keys, *second.keys] == whole.keys


@pytest.mark.parametrize(
    "wrong", [{"zipf_s": 0.0}, {"zipf_s": float("nan")}, {"payload_bytes_max": 10}, {"payload_bytes_max": 10**9}]
)
def test_wrong_distributions_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(SettingsError):
        WorkloadSettings(**wrong)
