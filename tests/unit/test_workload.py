"""The generator's events: the same for the same seed, valid, numbered, and of the size asked for."""

from __future__ import annotations

from collections import Counter
from itertools import accumulate

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from millstream.loadgen.workload import Workload, WorkloadSettings
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
