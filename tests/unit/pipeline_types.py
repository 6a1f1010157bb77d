"""Types and pipelines that several tests use."""

from __future__ import annotations

import msgspec

from millstream.processor import TestResult


class Payment(msgspec.Struct):
    user: str
    amount: float


class Scored(msgspec.Struct):
    user: str
    amount: float
    fee: float


def score(payment: Payment) -> Scored:
    return Scored(payment.user, payment.amount, payment.amount / 10)


def payment(amount: float) -> Payment:
    return Payment("ann", amount)


def raws(result: TestResult, topic: str = "out") -> list[bytes | None]:
    return [output.raw for output in result.outputs[topic]]


def values(result: TestResult, topic: str = "out") -> list[object]:
    return [output.value for output in result.outputs[topic]]


def headers_of(result: TestResult, number: int = 0) -> dict[str, bytes | None]:
    return dict(result.dead_letters[number].headers)
