"""The pipeline that docker-compose.yml runs; put your own in its place."""

import msgspec

from millstream.processor import Pipeline


class Payment(msgspec.Struct):
    id: int
    key: str
    seq: int
    sent_us: int
    amount: float
    country: str


class Charged(Payment):
    fee: float


def charge(payment: Payment) -> Charged:
    """The payment with its fee."""
    return Charged(**msgspec.structs.asdict(payment), fee=round(payment.amount * 0.012, 4))


pipeline = Pipeline("payments", missing_topics="create", on_error="dead-letter")
pipeline.read("payments-in", Payment).map(charge).write("payments-charged")
