"""What a type checker makes of pipelines; `test_pipeline_typing.py` runs mypy on this file, and nobody runs it.

Lines that must be refused say so with a `type: ignore`, which mypy reports as unused where it accepts them.
"""

# ruff: noqa: ARG005  # functions for stages take a value, also where the test makes nothing of it

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, TypedDict, assert_type

import msgspec
import numpy as np

from millstream.processor import KEEP, Columns, OnError, Pipeline, Record, Stream


class Payment(msgspec.Struct):
    user: str
    amount: float


@dataclass
class Scored:
    user: str
    fee: float


class Event(TypedDict):
    kind: str


def score(payment: Payment) -> Scored:
    return Scored(payment.user, payment.amount / 10)


def score_with_record(payment: Payment, record: Record) -> Scored:
    return Scored(payment.user, float(record.offset))


async def enrich(payment: Payment) -> Scored:
    return score(payment)


async def enrich_with_record(payment: Payment, record: Record) -> Scored:
    return score(payment)


def parts(payment: Payment) -> Iterator[str]:
    yield payment.user


async def fetch_parts(payment: Payment) -> list[int]:
    return [1]


def fee(columns: Columns) -> dict[str, Any]:
    return {"fee": columns["amount"] * 0.1}


pipeline = Pipeline("typed", on_error=OnError.dead_letter().retry(3, backoff_ms=50))

assert_type(pipeline.read("raw"), Stream[bytes])
assert_type(pipeline.read(["a", "b"], Event), Stream[Event])
assert_type(pipeline.read("untyped", format="json"), Stream[Any])
assert_type(pipeline.read("fixed", np.dtype("<f8")), Stream[Any])

payments = pipeline.read("payments", Payment, start="latest", on_offset_lost="earliest")
assert_type(payments, Stream[Payment])

assert_type(payments.filter(lambda p: p.amount > 0), Stream[Payment])
assert_type(payments.filter(lambda p, record: record.partition == 0), Stream[Payment])
assert_type(payments.split(lambda p: p.amount > 0), tuple[Stream[Payment], Stream[Payment]])

assert_type(payments.map(score), Stream[Scored])
assert_type(payments.map(score_with_record), Stream[Scored])
assert_type(payments.map(enrich, concurrency=8, timeout_ms=500), Stream[Scored])
assert_type(payments.map(enrich_with_record), Stream[Scored])
assert_type(payments.map(lambda p: p.amount), Stream[float])
assert_type(payments.map(lambda p: p.user).filter(lambda u: u.isalpha()), Stream[str])

assert_type(payments.flat_map(parts), Stream[str])
assert_type(payments.flat_map(fetch_parts), Stream[int])
assert_type(payments.flat_map(lambda p: [p.amount, 1.0]), Stream[float])

assert_type(payments.columns(fee, reads={"amount": float}, adds={"fee": float}), Stream[Payment])
assert_type(payments.columns(fee, reads={"amount": float}, adds={"fee": float}, type=Scored), Stream[Scored])
assert_type(payments.filter_columns(lambda c: c["amount"] > 0, reads={"amount": float}), Stream[Payment])

payments.write("out", key=lambda p: p.user, headers={"source": "typed"}, timestamp=KEEP)
payments.write("out", key=b"k", headers=lambda p: [("a", None)])
payments.write(lambda p: p.user, topics=["a", "b"], key=None, on_error="skip")

payments.map(score).map(score)  # type: ignore[arg-type]
payments.filter(lambda p: p.amuont > 0)  # type: ignore[attr-defined]
payments.write("out", key=parts)  # type: ignore[arg-type]
payments.map(score).write("out", key=score)  # type: ignore[arg-type]
payments.write("out", key=5)  # type: ignore[arg-type]
payments.write("out", on_error="explode")  # type: ignore[arg-type]
pipeline.read("in", start="now")  # type: ignore[call-overload]
Pipeline("typed", guarantee="perhaps")  # type: ignore[arg-type]
