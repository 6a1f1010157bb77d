"""Scores payments with a dense network: 128 features, layers of 512 and 256, one score.

    millstream run examples/fraud_model.py

0.4 million floating-point operations an event. Matrix products are what a GPU is best at, and also what a CPU's BLAS
is best at: a GPU with a fixed cost of 100 us is expected to be quicker from about 80 events in a batch, and cheaper
only where it is paid for anyway (about two cores do this at 200K events/s). Expected, from arithmetic: no GPU has
measured it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from millstream.processor import ArrayColumns, Equality, Offloadable, Pipeline

FEATURES, FIRST, SECOND = 128, 512, 256
PAYMENT = np.dtype([("payment", "<u8"), ("features", "<f4", (FEATURES,))])
SCORED = np.dtype([("payment", "<u8"), ("features", "<f4", (FEATURES,)), ("score", "<f4")])


def model() -> dict[str, npt.NDArray[np.float32]]:
    """The weights. A real program would read them from a file; these are drawn, always the same."""
    random = np.random.default_rng(20)

    def layer(inputs: int, outputs: int) -> npt.NDArray[np.float32]:
        return (random.standard_normal((inputs, outputs)) * np.sqrt(2.0 / inputs)).astype(np.float32)

    return {
        "w1": layer(FEATURES, FIRST),
        "b1": np.full(FIRST, 0.01, np.float32),
        "w2": layer(FIRST, SECOND),
        "b2": np.full(SECOND, 0.01, np.float32),
        "w3": layer(SECOND, 1),
    }


def score(xp: Any, columns: ArrayColumns, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The form for every device. On NumPy the products are BLAS's, which uses all cores."""
    hidden = xp.maximum(columns["features"] @ weights["w1"] + weights["b1"], 0.0)
    hidden = xp.maximum(hidden @ weights["w2"] + weights["b2"], 0.0)
    logit = (hidden @ weights["w3"])[:, 0]
    # Beyond this a score is 0 or 1 in float32, and an exponential would overflow.
    return {"score": 1.0 / (1.0 + xp.exp(-xp.clip(logit, -60.0, 60.0)))}


# BLAS may add in another order in a batch of another size, and a GPU does.
NETWORK = Offloadable(array=score, resident=model, version="1", equality=Equality(relative=1e-3, absolute=1e-5))

pipeline = Pipeline("fraud-model")
(
    pipeline.read("payments", PAYMENT)
    .offload(NETWORK, adds={"score": np.float32}, reads={"features": PAYMENT["features"]}, latency_budget_ms=10)
    .write("scored-payments")
)
