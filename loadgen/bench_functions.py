"""What a user would write for the benchmark's pipelines. The baseline calls the same functions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from millstream.processor import ArrayColumns, Columns

FEE_RATE = 0.01


class Payment(msgspec.Struct, gc=False):
    """The generator's event."""

    id: int
    key: str
    seq: int
    sent_us: int
    amount: float
    country: str


class ChargedPayment(msgspec.Struct, gc=False):
    """The event with one more field."""

    id: int
    key: str
    seq: int
    sent_us: int
    amount: float
    country: str
    fee: float


def charge(payment: Payment) -> ChargedPayment:
    """Typed JSON, event by event."""
    return ChargedPayment(
        payment.id,
        payment.key,
        payment.seq,
        payment.sent_us,
        payment.amount,
        payment.country,
        payment.amount * FEE_RATE,
    )


def charge_untyped(payment: dict[str, Any]) -> dict[str, Any]:
    """Untyped JSON, event by event."""
    return {**payment, "fee": payment["amount"] * FEE_RATE}


def charge_columns(columns: Columns) -> Mapping[str, Any]:
    """JSON fields as columns, batch by batch."""
    return {"fee": columns["amount"] * FEE_RATE}


def charge_arrays(columns: ArrayColumns) -> Mapping[str, Any]:
    """The same in a stage that may run on a device."""
    return {"fee": columns["amount"] * FEE_RATE}


def mark(value: bytes) -> bytes:
    """Raw bytes, event by event."""
    return value[:-1] + b',"seen":true}'
