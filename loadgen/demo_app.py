"""The demo's pipeline, written as a user would write it: read typed JSON, work out a fee, write typed JSON.

`millstream demo` runs it with `millstream run` and names the topics in the environment. It also runs by itself:

    millstream run loadgen/demo_app.py --brokers localhost:9092
"""

from __future__ import annotations

import os

import msgspec

from millstream.processor import Pipeline

FEE = {"DE": 0.010, "FR": 0.012, "NL": 0.009}
FEE_ELSEWHERE = 0.015


class Payment(msgspec.Struct):
    id: int
    key: str
    seq: int
    sent_us: int
    amount: float
    country: str


class ChargedPayment(msgspec.Struct):
    id: int
    key: str
    seq: int
    sent_us: int
    amount: float
    country: str
    fee: float


def charge(payment: Payment) -> ChargedPayment:
    """The payment with its fee, which depends on the country."""
    return ChargedPayment(
        id=payment.id,
        key=payment.key,
        seq=payment.seq,
        sent_us=payment.sent_us,
        amount=payment.amount,
        country=payment.country,
        fee=round(payment.amount * FEE.get(payment.country, FEE_ELSEWHERE), 4),
    )


pipeline = Pipeline(
    os.environ.get("MILLSTREAM_DEMO_NAME", "demo"),
    shards=int(os.environ["MILLSTREAM_DEMO_SHARDS"]) if "MILLSTREAM_DEMO_SHARDS" in os.environ else None,
)

(
    pipeline.read(os.environ.get("MILLSTREAM_DEMO_INPUT", "demo-payments"), Payment)
    .map(charge)
    .write(os.environ.get("MILLSTREAM_DEMO_OUTPUT", "demo-charged"))
)
