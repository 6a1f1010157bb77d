"""The ways in which a node or a worker can end, as its user reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.processor.actions import Outcome
from millstream.processor.control import Ready
from millstream.processor.restarts import RestartPolicy
from millstream.processor.slot import Slot
from millstream.processor.stage_watch import Overdue
from millstream.processor.stalled import Stalled, counted, place_of


@dataclass(slots=True)
class Ending:
    """A node's way out: what it will answer, and when it stops being patient.

    `is_empty` says that no worker is left, and the ledger has still to be told.
    """

    outcome: Outcome
    deadline: float
    is_forced: bool = False
    is_empty: bool = False

    def worsen(self, outcome: Outcome) -> None:
        """The first thing that went wrong is what the node answers."""
        if self.outcome.exit_code == 0:
            self.outcome = outcome


def cut_short(signal_number: int) -> Outcome:
    """A second signal came while the node drained."""
    return Outcome(128 + signal_number, "stopped at once by a second signal; what was not committed is redone")


def changed_program(worker: int, ready: Ready, pipeline: str | None, shards: int) -> Outcome:
    """A worker that was started again runs something else than the others."""
    text = (
        f"worker {worker} runs pipeline {ready.pipeline} with {ready.shards} shards, but this node runs "
        f"{pipeline} with {shards}: the program changed while the node ran; restart the node"
    )
    return Outcome(1, text)


def crash_loop(policy: RestartPolicy, slot: Slot, exit_text: str) -> Outcome:
    """Workers die again and again before they have done anything."""
    last = f"worker {slot.worker}: {exit_text}" + (f", after: {slot.last_words}" if slot.last_words else "")
    text = (
        f"workers died more than {policy.crashes_max} times within {policy.crash_window_s:g} s without processing "
        f"a record, so starting them again does not help; the last was {last}. What they wrote to stderr is above"
    )
    return Outcome(1, text)


def died_while_draining(worker: int, exit_text: str) -> Outcome:
    """A worker that was asked to drain is gone before it had."""
    return Outcome(1, f"worker {worker} died while it drained ({exit_text}); what it had not committed is redone")


def drained_too_slowly(workers: Sequence[int], drain_timeout_s: float) -> Outcome:
    """Workers were killed, since the time was over."""
    text = (
        f"workers {workers} did not drain within {drain_timeout_s:g} s and were killed; what they had "
        "not committed is redone"
    )
    return Outcome(1, text)


def hung(overdue: Overdue, known: Sequence[Stalled]) -> str:
    """A worker hung in a stage; `known` is at what others hung before."""
    counts = counted(known, overdue.stalls)
    now = [stalled for stalled in counts if any(stalled.overlaps(new) for new in overdue.stalls)]
    places = ", ".join(f"{place_of(stalled)} (attempt {stalled.attempts})" for stalled in now[:3])
    more = f" and {len(now) - 3} more" if len(now) > 3 else ""
    return f"stage {overdue.stage.name!r} did not come back within {overdue.stage.timeout_s:g} s from {places}{more}"
