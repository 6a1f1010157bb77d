"""The pipeline that faults are tried on: the demo's, in few shards, and with a trap in its function.

The trap is a file: the first call that finds it takes it away and does what it says, `sleep 3` (the worker's event loop
is blocked for 3 s) or `hold 3` (the whole interpreter is).
"""

from __future__ import annotations

import os
import time

from millstream.loadgen.demo_app import ChargedPayment, Payment, charge
from millstream.processor import Pipeline

_TRAP = os.environ.get("MILLSTREAM_CHAOS_TRAP")


def charge_or_be_trapped(payment: Payment) -> ChargedPayment:
    """The payment with its fee, later than it might be."""
    if _TRAP is not None and os.path.exists(_TRAP):
        _spring(_TRAP)
    return charge(payment)


def _spring(trap: str) -> None:
    try:
        # One of all calls in all processes gets it.
        os.rename(trap, f"{trap}.{os.getpid()}")
    except FileNotFoundError:
        return
    with open(f"{trap}.{os.getpid()}") as file:
        what, seconds = file.read().split()
    if what == "sleep":
        time.sleep(float(seconds))
        return
    until = time.monotonic() + float(seconds)
    while time.monotonic() < until:
        # One call into C, for whose length no other thread gets the interpreter.
        sum(range(10_000_000))


pipeline = Pipeline(
    os.environ.get("MILLSTREAM_CHAOS_NAME", "chaos"),
    shards=int(os.environ.get("MILLSTREAM_CHAOS_SHARDS", "8")),
    stage_timeout_s=float(os.environ.get("MILLSTREAM_CHAOS_STAGE_TIMEOUT_S", "60")),
)

(
    pipeline.read(os.environ.get("MILLSTREAM_CHAOS_INPUT", "chaos-payments"), Payment)
    .map(charge_or_be_trapped if _TRAP is not None else charge)
    .write(os.environ.get("MILLSTREAM_CHAOS_OUTPUT", "chaos-charged"))
)
