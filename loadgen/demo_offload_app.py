"""The pipeline of `millstream demo --offload`: a network that scores payments, on the CPU or on a device.

On the CPU the network is computed in full. A simulated device has no hardware to be quick with: it looks up what the
same network answers, which it works out when it warms up, and takes as long as its law says. The network's only input
is the amount in whole units, so that a table can hold all of its answers. It also runs by itself:

    millstream run loadgen/demo_offload_app.py --brokers localhost:9092 --devices simulated:fixed_us=300,event_us=4
"""

from __future__ import annotations

import functools
import os
import time
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millstream.processor.offloading import ArrayColumns, Equality, Offloadable
from millstream.processor.pipeline import Pipeline

Floats = npt.NDArray[np.float64]

STAGE: Final = "score"
BUDGET_MS: Final = 250.0
# The order in which sums are made depends on the size of a batch, and so do the last digits.
EQUALITY: Final = Equality(relative=1e-9, absolute=1e-9)
AMOUNTS: Final = 1000
"""All amounts of the load are less than this."""

_UNITS: Final = 256
_STEPS: Final = 32
_SEED: Final = 20
_MEASURED_ROWS: Final = 64
_MEASURED_RUNS: Final = 10


@functools.cache
def _weights() -> tuple[Floats, Floats, Floats]:
    """Of the first layer, the one that is gone through again and again, and the last; the same in each process."""
    random = np.random.default_rng(_SEED)
    first, inner, last = (random.standard_normal(shape) for shape in ((2, _UNITS), (_UNITS, _UNITS), (_UNITS, 1)))
    return first, inner * np.sqrt(2.0 / _UNITS), last / np.sqrt(_UNITS)


def network(amounts: npt.NDArray[Any]) -> Floats:
    """The scores of n amounts, float64[n] of -1 to 1: 256 units, 32 steps, some 4 million operations for each."""
    level = np.mod(np.floor(amounts), AMOUNTS) / AMOUNTS
    first, inner, last = _weights()
    values: Floats = np.stack([level, np.ones_like(level)], axis=1) @ first
    for _ in range(_STEPS):
        values = np.clip(values @ inner, 0.0, 1.0)
    return np.tanh(values @ last)[:, 0]


@functools.cache
def _answers() -> Floats:
    return network(np.arange(AMOUNTS))


def score(columns: ArrayColumns) -> Mapping[str, Any]:
    """On the CPU, in full."""
    return {"score": network(columns["amount"])}


def score_as_a_device(xp: Any, columns: ArrayColumns) -> Mapping[str, Any]:
    """On a simulated device, by the table."""
    return {"score": xp.take(xp.asarray(_answers()), xp.mod(xp.floor(columns["amount"]), AMOUNTS).astype(np.int64))}


def cost_us() -> float:
    """Microseconds of one core that the network takes of an event here: the best of some runs of 64 rows."""
    amounts = np.arange(_MEASURED_ROWS, dtype=np.float64)
    network(amounts)
    best_s = float("inf")
    for _ in range(_MEASURED_RUNS):
        begun = time.thread_time()
        network(amounts)
        best_s = min(best_s, time.thread_time() - begun)
    return best_s / _MEASURED_ROWS * 1e6


pipeline = Pipeline(os.environ.get("MILLSTREAM_DEMO_NAME", "demo-offload"), missing_topics="create", shards=1)

(
    pipeline.read(os.environ.get("MILLSTREAM_DEMO_INPUT", "demo-payments"), dict)
    .offload(
        Offloadable(cpu=score, array=score_as_a_device, equality=EQUALITY),
        reads={"amount": float},
        adds={"score": float},
        latency_budget_ms=BUDGET_MS,
        name=STAGE,
    )
    .write(os.environ.get("MILLSTREAM_DEMO_OUTPUT", "demo-scored"))
)

if __name__ == "__main__":
    print(f"{cost_us():.2f}")
