"""Batches at which workers hung: what is remembered of them until their records are dealt with. Pure, and light.

With each further attempt the range of a `Stalled` is narrower, since its records are tried in smaller pieces; the last
attempt is at a single record.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

import msgspec

from millstream.processor.ledger import Stalled

__all__ = ["STALLS_MAX", "StageLimit", "Stalled", "WatchPlan", "counted", "of_shards", "place_of"]

# More than can be of use: each costs a worker its life, and is of no interest once its offsets are committed.
STALLS_MAX: Final = 256


def place_of(stalled: Stalled) -> str:
    """The records, as topic-partition@first..last."""
    last = stalled.next_offset - 1
    span = f"{stalled.first_offset}" if last <= stalled.first_offset else f"{stalled.first_offset}..{last}"
    return f"{stalled.topic}-{stalled.partition}@{span}"


def counted(known: Sequence[Stalled], found: Sequence[Stalled]) -> tuple[Stalled, ...]:
    """What is known after workers hung once more: what overlaps is the same trouble, one attempt further.

    The newer range takes the place of the older ones. Nothing is forgotten before its offsets are committed, save the
    oldest of more than `STALLS_MAX`.
    """
    stalls = list(known)
    for new in found:
        before = [old for old in stalls if old.overlaps(new)]
        attempts = new.attempts + max((old.attempts for old in before), default=0)
        stalls = [old for old in stalls if old not in before]
        stalls.append(msgspec.structs.replace(new, attempts=attempts))
    return tuple(stalls[-STALLS_MAX:])


def of_shards(stalls: Sequence[Stalled], shards: Collection[int]) -> list[Stalled]:
    """What the owner of these shards has to know."""
    return [stalled for stalled in stalls if stalled.shard in shards]


class StageLimit(msgspec.Struct, frozen=True):
    """A stage by its name, and how long it may go without coming back from a call. Async ones wait in the loop."""

    name: str
    timeout_s: float
    is_async: bool = False


class WatchPlan(msgspec.Struct, frozen=True):
    """What an agent needs to know to read a worker's page: names by their numbers there, and the limits.

    After `attempts` the records go to the error policy of the stage.
    """

    stages: list[StageLimit] = []
    topics: list[str] = []
    attempts: int = 3
