"""The first step of a prediction: a formula, for many candidates at once.

A batch closes at n records or when its oldest event has waited for W; one server takes batches in turn. With m the
records that come to be in a batch, S the time of a batch and rho = rate * S(m) / (m * servers):

    m   = min(n, rate * max(S, W) + exp(-rate * (S - W)+))                 (what comes from one start to the next)
    p99 = max(fill wait, wait for the batch in service) + p99 of S(m) + Wq + what sizes vary by
    Wq  = S * (Ca^2/m + Cs^2)/2 / (1 - rho) * ln(max(1, rho/0.01))     (Kingman's approximation, exponential tail)

It is an upper bound for Poisson arrivals and says nothing true about bursts: what it lets pass, a replay decides.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from millstream.gpu_offload.curve import SIZES, Floats
from millstream.gpu_offload.decision import UNBOUNDED_S
from millstream.gpu_offload.service_model import Service

_ROUNDS = 4
_ARRIVAL_CV2 = 1.0
_P99_DEVIATIONS = 2.326


@dataclass(frozen=True, slots=True)
class Prediction:
    """For each candidate, float64[n]: `records` of a batch, times, `busy` servers on average, `load` if full."""

    records: Floats
    p50_s: Floats
    p99_s: Floats
    busy: Floats
    load: Floats


def predict(
    service: Service, servers: int, records_max: Floats, wait_s: Floats, rate: float, stable_load: float
) -> Prediction:
    """Predict candidates at a steady `rate` in events per second, above 0. Arrays are float64[n], one per candidate."""
    records = np.minimum(records_max, 1.0 + rate * wait_s)
    per_event = rate * service.curve.per_event_s
    if per_event < servers:
        # Where a server takes what has come while it was busy, a line's batches settle at about this size.
        settled = rate * service.curve.fixed_s / (servers - per_event)
        records = np.minimum(records_max, np.maximum(records, settled))
    for _ in range(_ROUNDS):
        service_s = np.interp(records, SIZES, service.curve.table) / servers
        came = rate * np.maximum(service_s, wait_s) + np.exp(-rate * np.maximum(service_s - wait_s, 0.0))
        records = np.minimum(records_max, came)
    mean_s = np.interp(records, SIZES, service.curve.table)
    p50_s = mean_s * np.interp(records, SIZES, service.p50_ratios)
    p99_s = mean_s * np.interp(records, SIZES, service.p99_ratios)
    busy = np.minimum(servers, rate * mean_s / records)
    rho = np.minimum(busy / servers, 0.999)
    load = rate * np.interp(records_max, SIZES, service.curve.table) / records_max / servers
    fill_s = np.minimum(wait_s, records / rate)
    in_service_s = p99_s * np.maximum(0.0, 1.0 - 0.01 / np.maximum(rho, 1e-9))
    # The spread of a lognormal with this p99; enough for a queue's second moment.
    spread = np.log(np.maximum(p99_s / np.maximum(p50_s, 1e-12), 1.0)) / _P99_DEVIATIONS
    queue_load = np.minimum(load, 0.999)
    queue_s = (
        mean_s
        * (_ARRIVAL_CV2 / records + np.expm1(spread**2))
        / 2.0
        / (1.0 - queue_load)
        * np.log(np.maximum(1.0, queue_load / 0.01))
    )
    # Sizes vary as arrivals do, and the more so where a long batch makes the next one long.
    echo = np.where(mean_s > wait_s, np.minimum(per_event / servers, 0.95), 0.0)
    large = np.minimum(records_max, records + _P99_DEVIATIONS * np.sqrt(records / (1.0 - echo**2)))
    swing_s = service.curve.per_event_s * (large - records)
    total_s = np.maximum(fill_s, in_service_s) + p99_s + queue_s + swing_s
    grows = load >= stable_load
    return Prediction(
        records,
        np.where(grows, UNBOUNDED_S, 0.5 * np.maximum(fill_s, rho * p50_s) + p50_s),
        np.where(grows, UNBOUNDED_S, np.minimum(total_s, UNBOUNDED_S)),
        busy,
        load,
    )
