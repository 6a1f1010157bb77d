"""The ways in which a node can end, as its user reads them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from millstream.processor.actions import Outcome
from millstream.processor.control import Ready
from millstream.processor.restarts import RestartPolicy
from millstream.processor.slot import Slot


@dataclass(slots=True)
class Ending:
    """A node's way out: what it will answer, and when it stops being patient."""

    outcome: Outcome
    deadline: float
    is_forced: bool = False

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
