"""The token of an ownership, for functions with effects outside of Kafka (invariant I7)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Final

from millstream.processor.errors import UserError

_TOKEN: Final[ContextVar[int]] = ContextVar("millstream_ownership_token")


def ownership_token() -> int:
    """A number that grows from each owner of a shard to the next: where in the ledger the ownership began.

    For a function of a pipeline that writes to something outside of Kafka. An owner that was found dead may wake up and
    finish what it was at, while the next one is at work already. A sink is safe from that if it keeps the largest token
    that it has seen for each input partition, with what it stores for that, and refuses smaller ones. A record may
    still come more than once, with the same token or a larger one: effects outside of Kafka are at least once.

    It is 0 in `Pipeline.test`. Raises UserError outside of a call to a pipeline's function.
    """
    token = _TOKEN.get(None)
    if token is None:
        raise UserError("ownership_token() has a value only while a function of a running pipeline is called")
    return token


def begin_ownership(token: int) -> None:
    """From now on the current task, and the tasks that it begins, run under this token."""
    _TOKEN.set(token)


@contextmanager
def owning(token: int) -> Iterator[None]:
    """The same for what runs in here."""
    before = _TOKEN.set(token)
    try:
        yield
    finally:
        _TOKEN.reset(before)
