"""The second step of a prediction: recorded arrivals run through a candidate's rule.

A batch closes when there are `records_max` or when its oldest event has waited for `wait_s`, and starts when a server
is free; what has come by then goes with it, up to `records_max`. Times are drawn from the measured spread, with the
same random numbers for every candidate, so that candidates differ by what they are and not by luck.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from millstream.gpu_offload.curve import BUCKETS, Floats, straight
from millstream.gpu_offload.service_model import DRAWS, Service, certain
from millstream.processor.kernels import kernel

_LOWEST_S: Final = 1e-6
_STEPS_PER_E: Final = 50.0
_BINS: Final = 1100
LUCK: Final = 4096
"""How many random numbers there are; batch i uses number i modulo this."""


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a candidate would have come to. `busy_s` is server time, `over_s` from the first arrival to the last end."""

    p50_s: float
    p99_s: float
    late_share: float
    busy_s: float
    batches: int
    events: float
    over_s: float


def replay(
    times: Floats,
    counts: Floats,
    service: Service,
    servers: int,
    records_max: int,
    wait_s: float,
    limit_s: float,
    luck: npt.NDArray[np.int64],
) -> Replayed:
    """Replay `counts[i]` events at each of `times`, ascending; `luck` are numbers below DRAWS, int64[LUCK].

    Late are events that take longer than `limit_s`.
    """
    latencies = np.zeros(_BINS)
    totals = np.zeros(4)
    _replay(
        times,
        counts,
        service.curve.table,
        service.draws,
        servers,
        records_max,
        wait_s,
        limit_s,
        luck,
        latencies,
        totals,
    )
    late, busy_s, batches, end = totals
    events = float(latencies.sum())
    return Replayed(
        _quantile(latencies, 0.5),
        _quantile(latencies, 0.99),
        float(late) / events if events else 0.0,
        float(busy_s),
        int(batches),
        events,
        float(end - times[0]) if len(times) else 0.0,
    )


def warm_up() -> None:
    """Have the kernel compiled or loaded, which takes up to a few seconds the first time; in a thread, if need be."""
    replay(np.zeros(1), np.ones(1), certain(straight(1e-3, 0.0)), 1, 1, 0.0, 1.0, draw_luck(0))


def draw_luck(seed: int) -> npt.NDArray[np.int64]:
    """The random numbers of replays, for one seed always the same."""
    return np.random.default_rng(seed).permutation(np.arange(LUCK) % DRAWS).astype(np.int64)


def _quantile(bins: Floats, part: float) -> float:
    total = float(bins.sum())
    if total <= 0.0:
        return 0.0
    sums = np.cumsum(bins)
    place = int(np.searchsorted(sums, part * total))
    within = (part * total - (sums[place] - bins[place])) / bins[place] if bins[place] else 0.5
    return float(_LOWEST_S * np.exp((place + within) / _STEPS_PER_E))


@kernel
def _mean_s(table: Floats, records: float) -> float:
    """The table at powers of two, straight between them."""
    place = min(BUCKETS - 2, max(0, int(np.log2(max(1.0, records)))))
    low = 2.0**place
    return float(table[place] + (table[place + 1] - table[place]) * (records - low) / low)


@kernel
def _replay(
    times: Floats,
    counts: Floats,
    table: Floats,
    draws: Floats,
    servers: int,
    records_max: int,
    wait_s: float,
    limit_s: float,
    luck: npt.NDArray[np.int64],
    latencies: Floats,
    totals: Floats,
) -> None:
    free = np.full(servers, -np.inf)
    pieces = len(times)
    head = 0
    left = counts[0] if pieces else 0.0
    full = 0
    waiting = left
    batches = 0
    while head < pieces:
        # `full` is the first piece with which the batch is full; `waiting` are the events from the head up to it.
        while waiting < records_max and full + 1 < pieces:
            full += 1
            waiting += counts[full]
        closed = times[head] + wait_s
        if waiting >= records_max:
            closed = min(closed, times[full])
        server = 0
        for other in range(1, servers):
            if free[other] < free[server]:
                server = other
        start = max(closed, free[server], times[head])
        taken = 0.0
        last = head
        rest = left
        while last < pieces and times[last] <= start and taken < records_max:
            part = min(rest, records_max - taken)
            taken += part
            rest -= part
            if rest > 0.0:
                break
            last += 1
            if last < pieces:
                rest = counts[last]
        size = min(BUCKETS - 1, int(np.log2(max(1.0, taken)) + 0.5))
        seconds = _mean_s(table, taken) * draws[size, luck[batches % len(luck)]]
        end = start + seconds
        free[server] = end
        batches += 1
        totals[1] += seconds
        totals[3] = max(totals[3], end)
        gone = taken
        place = head
        here = left
        while gone > 0.0:
            part = min(here, gone)
            latency = end - times[place]
            spot = min(_BINS - 1, max(0, int(np.log(max(latency, _LOWEST_S) / _LOWEST_S) * _STEPS_PER_E)))
            latencies[spot] += part
            if latency > limit_s:
                totals[0] += part
            gone -= part
            place += 1
            if place < pieces:
                here = counts[place]
        waiting -= taken
        head = last
        left = rest
        if head < pieces and full < head:
            full = head
            waiting = left
    totals[2] = batches
