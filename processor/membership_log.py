"""What a node needs of the log to be a member: the ledger, followed and appended to, and beats.

`connectors.kafka` implements it. Light, since the agent imports it: values are bytes, and there are no columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Entry(NamedTuple):
    """A record of the ledger: where it stands, and its bytes."""

    offset: int
    value: bytes


@dataclass(frozen=True, slots=True)
class LedgerPage:
    """A piece of the ledger, in order; possibly nothing.

    `next_offset` is where to go on. `log_start` is the first offset that is still there, `end_offset` the one that the
    next record will have: all that was appended before the answer has been read when `next_offset` has reached it.
    """

    entries: Sequence[Entry]
    next_offset: int
    log_start: int
    end_offset: int

    @property
    def caught_up(self) -> bool:
        """Whether there was no more when this was read."""
        return self.next_offset >= self.end_offset


@dataclass(frozen=True, slots=True)
class BeatsPage:
    """Beats that have arrived, in order; possibly none.

    `is_behind` says that there are more which were not read yet, or that some were missed: silence proves nothing now.
    """

    values: Sequence[bytes]
    is_behind: bool


class MembershipLog(Protocol):
    """The ledger and the beats of one pipeline, as one node uses them.

    Each kind of call has a way of its own to the log, so that none waits behind another. `follow` and `read_beats` are
    called by one task each; the others may overlap. Every call is bounded in time and raises UnavailableError where it
    could not be done, to be tried again at once (it is the log that sees to pauses), and RefusedError where that cannot
    help.
    """

    async def connect(self) -> None:
        """Reach the log."""

    async def follow(self, offset: int | None) -> LedgerPage:
        """What stands in the ledger from `offset` on; from its start with None. Waits about half a second for news.

        Raises PositionLostError where the offset is not there any more, or the ledger was made anew: begin again with
        None. Raises CorruptBatchError for what is damaged.
        """

    async def append(self, values: Sequence[bytes]) -> None:
        """Append records, in order; they are stored for good when this returns.

        What cannot be told to be stored is reported as UnavailableError, and may be stored all the same.
        """

    async def delete_before(self, offset: int) -> None:
        """Delete what stands in the ledger before `offset`."""

    async def send_beat(self, value: bytes) -> None:
        """Send a beat. One that could not be sent in time is dropped: the next one says the same."""

    async def read_beats(self) -> BeatsPage:
        """The beats since the last call; the first one begins with those that are yet to come.

        Waits a moment for some. Where the log does not have what comes next, reading goes on at its end.
        """

    def close(self) -> None:
        """Let go of the log; what is under way fails."""
