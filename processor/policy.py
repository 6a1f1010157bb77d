"""What happens to a record on which a stage fails: stop, dead-letter, or skip, after a bounded number of retries."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal, TypeAlias

Action: TypeAlias = Literal["stop", "dead-letter", "skip"]

ACTIONS: tuple[Action, ...] = ("stop", "dead-letter", "skip")
RETRIES_MAX = 100
BACKOFF_MS_LIMIT = 60_000


@dataclass(frozen=True, slots=True)
class OnError:
    """A policy: retry the failing records `retries` times, then `action`.

    The wait before retry i is `backoff_ms * 2**(i - 1)`, never more than `backoff_max_ms`, so all waits together
    take at most `retries * backoff_max_ms`. Only the records that failed are tried again.

    - ``stop``: the pipeline stops with a `StageError`; nothing of the batch is committed.
    - ``dead-letter``: the record's original bytes go to the dead-letter topic, in the transaction of its batch.
    - ``skip``: the record is left out and counted.
    """

    action: Action
    retries: int = 0
    backoff_ms: int = 100
    backoff_max_ms: int = 5_000

    @staticmethod
    def stop() -> OnError:
        """Stop the pipeline. This is the default."""
        return OnError("stop")

    @staticmethod
    def dead_letter() -> OnError:
        """Send the record to the pipeline's dead-letter topic and go on."""
        return OnError("dead-letter")

    @staticmethod
    def skip() -> OnError:
        """Leave the record out, count it, and go on."""
        return OnError("skip")

    def retry(self, retries: int, *, backoff_ms: int = 100, backoff_max_ms: int = 5_000) -> OnError:
        """The same policy, after up to `retries` further attempts."""
        return replace(self, retries=retries, backoff_ms=backoff_ms, backoff_max_ms=backoff_max_ms)

    def wait_ms(self, retry: int) -> int:
        """How long to wait before retry number `retry` (from 1)."""
        # Without the bound on the exponent a late retry would compute an enormous number only to cap it.
        return int(min(self.backoff_ms << min(retry - 1, 32), self.backoff_max_ms))

    def mistakes(self) -> list[str]:
        """What is wrong with the numbers, for the user; empty when all is well."""
        found = []
        if self.action not in ACTIONS:
            found.append(f"error policy {self.action!r} is unknown; use one of {', '.join(map(repr, ACTIONS))}")
        if not _is_whole(self.retries, RETRIES_MAX):
            found.append(f"retries={self.retries!r} must be a whole number from 0 to {RETRIES_MAX}")
        for setting in ("backoff_ms", "backoff_max_ms"):
            value = getattr(self, setting)
            if not _is_whole(value, BACKOFF_MS_LIMIT):
                found.append(f"{setting}={value!r} must be a whole number from 0 to {BACKOFF_MS_LIMIT}")
        return found


ErrorPolicy: TypeAlias = OnError | Action


def as_policy(given: ErrorPolicy) -> OnError:
    """The policy that a word stands for. Unknown words are found by `OnError.mistakes`."""
    return given if isinstance(given, OnError) else OnError(given)


def _is_whole(value: object, limit: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= limit
