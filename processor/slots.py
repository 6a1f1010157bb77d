"""All the places for workers of a node, and what was decided about them and has still to be done."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

from millstream.processor.actions import Action, Announce, Gone, Kill, Spawn
from millstream.processor.event_log import EventLog
from millstream.processor.slot import ALIVE, Slot, Standing, WorkerView

_log: Final = EventLog(logging.getLogger("millstream.node"))


class Slots:
    """One place for each of `workers`. What is to be done waits, in order, until somebody takes it.

    Until `gather_until` workers that are ready wait for those that start, so that shards are planned for all of them.
    """

    def __init__(self, workers: int, start_timeout_s: float) -> None:
        self._slots = [Slot(worker) for worker in range(workers)]
        self._start_timeout_s = start_timeout_s
        self._actions: list[Action] = []
        self.gather_until: float | None = None
        self.has_announced = False

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._slots)

    def __getitem__(self, worker: int) -> Slot:
        return self._slots[worker]

    def ask(self, action: Action) -> None:
        """Have this done, after all else."""
        self._actions.append(action)

    def take_actions(self) -> list[Action]:
        """What is to be done now."""
        actions, self._actions = self._actions, []
        return actions

    def spawn(self, slot: Slot, now: float) -> None:
        """Start the worker's next incarnation."""
        slot.begin(now, self._start_timeout_s)
        self.ask(Spawn(slot.worker, slot.incarnation))

    def kill(self, slot: Slot, fault: str | None, *, shows_stack: bool = False) -> None:
        """End the worker's process; `fault` is its own, where it has one."""
        if fault is not None:
            _log.warning("worker.killed", worker=slot.worker, incarnation=slot.incarnation, why=fault)
            slot.last_words = fault
        slot.enter(Standing.DYING, None)
        self.ask(Kill(slot.worker, shows_stack))

    def kill_all(self) -> None:
        """End every process."""
        for slot in self._slots:
            if slot.standing in ALIVE:
                self.kill(slot, None)

    def announce(self, now: float) -> None:
        """Tell the membership of workers that are ready and new to it; `has_announced` says whether there ever were."""
        if not self._is_gathered(now):
            return
        for slot in self._slots:
            if slot.standing is Standing.READY and not slot.is_announced:
                slot.is_announced = self.has_announced = True
                self.ask(Announce(slot.worker, slot.incarnation))

    def _is_gathered(self, now: float) -> bool:
        if self.gather_until is None:
            return True
        if now < self.gather_until and any(slot.standing is Standing.STARTING for slot in self._slots):
            return False
        self.gather_until = None
        return True

    def tell_gone(self, slot: Slot, why: str) -> None:
        """Tell the membership that a worker is gone, if it knew of it."""
        if slot.is_announced:
            slot.is_announced = False
            self.ask(Gone(slot.worker, slot.incarnation, why, slot.stalls))

    def views(self) -> Iterator[WorkerView]:
        """Every worker as it is now."""
        for slot in self._slots:
            shards = tuple(sorted(slot.open_shards)) if slot.standing in ALIVE else ()
            yield WorkerView(slot.worker, slot.incarnation, slot.standing, shards, slot.restarts)
