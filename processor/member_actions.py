"""What a node's part in the membership can ask of its agent."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from millstream.processor.ledger import LedgerRecord, SnapshotRecord, Stalled, Verdict


@dataclass(frozen=True, slots=True)
class Append:
    """Append the records to the ledger, in one request, and try again until `until` (seconds) at most.

    Then it is dropped: what is still true by then is said again. Records that are stored twice do no harm.
    """

    records: tuple[LedgerRecord, ...]
    until: float


@dataclass(frozen=True, slots=True)
class Own:
    """The whole set of shards that a worker of this node is to run from now on, the rest is to be released.

    `tokens` has for each of them where in the ledger its holding began; it only grows from one holder to the next
    (invariant I7). `stalls` has the batches at which earlier workers hung.
    """

    worker: int
    incarnation: int
    tokens: Mapping[int, int]
    stalls: Collection[Stalled]

    @property
    def shards(self) -> frozenset[int]:
        """The shards."""
        return frozenset(self.tokens)


@dataclass(frozen=True, slots=True)
class Overdue:
    """A worker of this node has not released these shards in time: it hangs, and is to be killed."""

    worker: int
    incarnation: int
    shards: frozenset[int]


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Append this record, and once it is stored delete all records up to and with its `through`."""

    record: SnapshotRecord


@dataclass(frozen=True, slots=True)
class Declared:
    """This node was found dead: drop everything uncommitted and join anew, as another node.

    Nothing follows it. `verdict` is None where the ledger has forgotten the details.
    """

    verdict: Verdict | None


MemberAction: TypeAlias = Append | Own | Overdue | Snapshot | Declared
