"""What a node does about its workers: a state machine that is told what happened and answers what to do.

    waiting ──► starting ──► ready ──► leaving ──► ended
       ▲            │          │          │
       └────────────┴── died ──┴──────────┘         dying: killed, its exit is still to come

It owns neither processes nor clock. The agent hands it each message, exit, signal and the time, and carries out the
actions that it answers, so that every order of events can be tried in a test.
"""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from millstream.processor import endings
from millstream.processor.actions import Action, Kill, Outcome, Send, Spawn
from millstream.processor.control import (
    Assign,
    Done,
    Failed,
    Leaving,
    Progress,
    Ready,
    ShardFinished,
    Stop,
    ToAgent,
    Trouble,
)
from millstream.processor.endings import Ending
from millstream.processor.event_log import EventLog
from millstream.processor.handover import Handover
from millstream.processor.restarts import RestartPolicy, deaths_in_row, delay_s, is_crash_loop
from millstream.processor.shard_host import ShardReleased, ShardRestarted
from millstream.processor.slot import ALIVE, Slot, Standing, WorkerView
from millstream.processor.stage_watch import Overdue
from millstream.processor.stall_book import StallBook

_log: Final = EventLog(logging.getLogger("millstream.node"))

# A worker that has said its last words has this long to be gone.
EXIT_WAIT_S: Final = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """How many workers a node has and how long it waits for them. All waits are upper bounds.

    A worker that starts may be silent for `start_timeout_s`; one that waits and says so may wait.
    `gather_s` is how long the first worker that is ready waits for the others before shards are given out, since a
    shard that starts and moves at once is paid for twice.
    """

    workers: int = 1
    drain_timeout_s: float = 20.0
    release_timeout_s: float = 5.0
    start_timeout_s: float = 120.0
    gather_s: float = 1.0
    restarts: RestartPolicy = field(default_factory=RestartPolicy)


class Supervisor:
    """Decides for one node. `outcome` is set once there is nothing more to do."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._slots = [Slot(worker) for worker in range(settings.workers)]
        self._pipeline: str | None = None
        self._shards = 0
        self._handover: Handover | None = None
        self._gather_until: float | None = None
        self._fruitless_deaths: deque[float] = deque(maxlen=settings.restarts.crashes_max + 1)
        self._ending: Ending | None = None
        self._actions: list[Action] = []
        self.shard_restarts = 0
        self.stalls = StallBook()
        self.outcome: Outcome | None = None

    # -- what happened ------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """The node begins: all workers start."""
        for slot in self._slots:
            self._spawn(slot, now)
        return self._take_actions()

    def received(self, worker: int, message: ToAgent, now: float) -> list[Action]:
        """A worker's current incarnation has said something."""
        slot = self._slots[worker]
        match message:
            case Ready():
                self._on_ready(slot, message, now)
            case Progress(counts=counts):
                slot.has_progressed |= counts.records_in > 0
                if slot.standing is Standing.STARTING:
                    # Its loop is alive: it waits for topics that somebody has still to create, maybe for hours.
                    slot.deadline = now + self._settings.start_timeout_s
                return []
            case ShardReleased(shard=shard):
                self._on_released(slot, shard)
            case ShardRestarted():
                self.shard_restarts += 1
            case Leaving():
                self._on_leaving(slot, now)
            case ShardFinished(shard=shard):
                self._on_finished(slot, shard, now)
            case Done():
                slot.is_done = True
                slot.enter(Standing.LEAVING, now + EXIT_WAIT_S)
            case Failed():
                self._on_failed(slot, message, now)
        self._settle(now)
        return self._take_actions()

    def exited(self, worker: int, exit_text: str, *, is_clean: bool, now: float) -> list[Action]:
        """A worker's process is gone; nothing more will be heard of this incarnation."""
        slot = self._slots[worker]
        before = slot.standing
        slot.enter(Standing.ENDED, None)
        freed = self._handover.lost(worker) if self._handover else frozenset[int]()
        # The shards come first: a restart can wait, they should not.
        self._settle(now)
        has_left = is_clean and before is Standing.LEAVING
        # One that was still starting when the node was told to end is killed, which is no trouble to tell of.
        was_cut_short = before is Standing.DYING and slot.last_words is None and not freed
        if not has_left and not was_cut_short:
            _log.warning(
                "worker.died",
                worker=worker,
                incarnation=slot.incarnation,
                how=exit_text,
                shards=sorted(freed),
                lived_s=now - slot.started_at,
            )
        if self._ending is not None:
            self._on_exit_while_ending(slot, before, has_left, exit_text)
        elif not slot.is_done:
            self._on_exit_while_running(slot, has_left, exit_text, now)
        self._replace_hands(now)
        self._end_if_empty()
        return self._take_actions()

    def stalled(self, worker: int, overdue: Overdue) -> list[Action]:
        """A worker's current incarnation hangs in a stage."""
        slot = self._slots[worker]
        if slot.standing in (Standing.READY, Standing.LEAVING):
            fault = self.stalls.note(overdue)
            # It is the record that is to blame, and it will be given up: no number of such deaths is a crash loop.
            slot.is_to_blame = False
            if self._ending is not None:
                self._worsen(Outcome(1, f"worker {worker} was killed while it drained: {fault}"))
            self._kill(slot, fault, shows_stack=True)
        return self._take_actions()

    def stop(self, now: float, signal_number: int | None) -> list[Action]:
        """Somebody wants the node to end: the first time it drains, the second time it is cut short."""
        if self._ending is None:
            _log.info("node.draining", timeout_s=self._settings.drain_timeout_s)
            self._end(Outcome(0), now)
        elif not self._ending.is_forced and signal_number is not None:
            self._force(endings.cut_short(signal_number), now)
        self._end_if_empty()
        return self._take_actions()

    def tick(self, now: float) -> list[Action]:
        """The time is `now`; due whenever `next_deadline` has passed."""
        if self._ending is not None:
            self._tick_ending(self._ending, now)
        else:
            self._tick_running(now)
        self._end_if_empty()
        return self._take_actions()

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        if self._ending is not None:
            return self._ending.deadline
        deadlines = [slot.deadline for slot in self._slots]
        deadlines += [self._gather_until, self._handover.next_deadline() if self._handover else None]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- what can be seen from outside --------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """One word for where the node is: starting, running, draining or ended."""
        if self.outcome is not None:
            return "ended"
        if self._ending is not None:
            return "draining"
        return "running" if self._handover and self._gather_until is None else "starting"

    @property
    def pipeline(self) -> str | None:
        """The pipeline's name, once a worker has said it."""
        return self._pipeline

    @property
    def shards(self) -> int:
        """The number of shards; 0 until a worker has said it."""
        return self._shards

    def workers(self) -> Iterator[WorkerView]:
        """Every worker as it is now."""
        for slot in self._slots:
            owned = self._handover.owned(slot.worker) if self._handover else frozenset[int]()
            yield WorkerView(slot.worker, slot.incarnation, slot.standing, tuple(sorted(owned)), slot.restarts)

    # -- messages -----------------------------------------------------------------------------------------------

    def _on_ready(self, slot: Slot, ready: Ready, now: float) -> None:
        if slot.standing is not Standing.STARTING:
            return
        if self._handover is None:
            self._pipeline, self._shards = ready.pipeline, ready.shards
            self._handover = Handover(ready.shards)
            self._gather_until = now + self._settings.gather_s
        elif (ready.pipeline, ready.shards) != (self._pipeline, self._shards):
            self._end(endings.changed_program(slot.worker, ready, self._pipeline, self._shards), now)
            return
        slot.enter(Standing.READY, None)
        _log.info(
            "worker.ready",
            worker=slot.worker,
            incarnation=slot.incarnation,
            pipeline=ready.pipeline,
            shards=ready.shards,
            took_s=now - slot.started_at,
        )

    def _on_released(self, slot: Slot, shard: int) -> None:
        if self._handover is None:
            return
        # In a drain workers are asked for everything at once, by a stop; shard by shard nothing is asked.
        if not self._handover.released(slot.worker, shard) and self._ending is None:
            _log.warning("shard.released_unasked", worker=slot.worker, shard=shard)

    def _on_leaving(self, slot: Slot, now: float) -> None:
        if slot.standing is not Standing.READY or self._handover is None:
            return
        _log.info("worker.leaving", worker=slot.worker, incarnation=slot.incarnation)
        deadline = now + self._settings.drain_timeout_s + EXIT_WAIT_S
        slot.enter(Standing.LEAVING, deadline)
        self._handover.leaving(slot.worker, deadline)

    def _on_finished(self, slot: Slot, shard: int, now: float) -> None:
        if self._handover is None:
            return
        self._handover.finished(shard)
        _log.info("shard.finished", worker=slot.worker, shard=shard)
        if self._handover.is_complete:
            self._end(Outcome(0), now)

    def _on_failed(self, slot: Slot, failed: Failed, now: float) -> None:
        slot.last_words = failed.text
        slot.is_to_blame = failed.trouble is not Trouble.WORLD
        if slot.standing is not Standing.DYING:
            slot.enter(Standing.LEAVING, now + EXIT_WAIT_S)
        # Before the node has ever worked, trouble is more likely a mistake than bad luck, and someone is watching.
        if failed.trouble is Trouble.FINAL or self._handover is None or self._ending is not None:
            self._end(Outcome(failed.exit_code, failed.text), now)
        else:
            _log.warning("worker.failed", worker=slot.worker, incarnation=slot.incarnation, error=failed.text)

    # -- exits --------------------------------------------------------------------------------------------------

    def _on_exit_while_running(self, slot: Slot, has_left: bool, exit_text: str, now: float) -> None:
        policy = self._settings.restarts
        lived_s = now - slot.started_at
        slot.deaths_in_row = deaths_in_row(0 if has_left else slot.deaths_in_row, lived_s, policy)
        is_fruitless = not slot.has_progressed and lived_s < policy.good_life_s
        if is_fruitless and slot.is_to_blame and not has_left:
            self._fruitless_deaths.append(now)
        if is_crash_loop(self._fruitless_deaths, now, policy):
            self._end(endings.crash_loop(policy, slot, exit_text), now)
            return
        wait_s = delay_s(slot.deaths_in_row, policy)
        slot.enter(Standing.WAITING, now + wait_s)
        _log.info("worker.restart_planned", worker=slot.worker, in_s=wait_s, deaths_in_row=slot.deaths_in_row)

    def _on_exit_while_ending(self, slot: Slot, before: Standing, has_left: bool, exit_text: str) -> None:
        if has_left or before is Standing.DYING or slot.last_words is not None:
            return
        self._worsen(endings.died_while_draining(slot.worker, exit_text))

    def _replace_hands(self, now: float) -> None:
        """In a run with an end, shards that came too late to a worker that has finished need another one."""
        if self._ending is not None or self._handover is None:
            return
        hands = (Standing.WAITING, Standing.STARTING, Standing.READY)
        if not any(slot.standing in hands for slot in self._slots):
            slot = next(slot for slot in self._slots if slot.standing is Standing.ENDED)
            slot.enter(Standing.WAITING, now)

    # -- time ---------------------------------------------------------------------------------------------------

    def _tick_running(self, now: float) -> None:
        late = self._handover.overdue(now) if self._handover else frozenset[int]()
        for slot in self._slots:
            is_due = slot.deadline is not None and slot.deadline <= now
            if slot.standing is Standing.WAITING and is_due:
                slot.restarts += 1
                self._spawn(slot, now)
            elif slot.standing is Standing.STARTING and is_due:
                self._kill(slot, f"did not start within {self._settings.start_timeout_s:g} s")
            elif slot.standing is Standing.LEAVING and is_due:
                self._kill(slot, "did not exit in time")
            elif slot.standing is Standing.READY and slot.worker in late:
                self._kill(slot, f"did not release a shard within {self._settings.release_timeout_s:g} s")
        self._settle(now)

    def _tick_ending(self, ending: Ending, now: float) -> None:
        if now < ending.deadline:
            return
        if ending.is_forced:
            # A killed process that does not die is stuck in the kernel; it can do no more, and waiting helps no one.
            self.outcome = ending.outcome
            return
        stuck = [slot.worker for slot in self._slots if slot.standing in ALIVE]
        self._force(endings.drained_too_slowly(stuck, self._settings.drain_timeout_s), now)

    def _settle(self, now: float) -> None:
        if self._handover is None or self._ending is not None or not self._is_gathered(now):
            return
        live = [slot.worker for slot in self._slots if slot.standing is Standing.READY]
        changes = self._handover.settle(live, now + self._settings.release_timeout_s)
        for worker, shards in changes.items():
            self._actions.append(Send(worker, Assign(sorted(shards), self.stalls.of(shards))))
            _log.info("shards.assigned", worker=worker, shards=sorted(shards))

    def _is_gathered(self, now: float) -> bool:
        if self._gather_until is None:
            return True
        if now < self._gather_until and any(slot.standing is Standing.STARTING for slot in self._slots):
            return False
        self._gather_until = None
        return True

    # -- endings ------------------------------------------------------------------------------------------------

    def _end(self, outcome: Outcome, now: float) -> None:
        """Begin to drain; where that has begun already, only note what went wrong."""
        if self._ending is not None:
            self._worsen(outcome)
            return
        self._ending = Ending(outcome, now + self._settings.drain_timeout_s)
        # Workers get less than the whole time, so that one which is late can still say why.
        worker_timeout_s = max(self._settings.drain_timeout_s - 1.0, self._settings.drain_timeout_s * 0.8)
        for slot in self._slots:
            if slot.standing is Standing.WAITING:
                slot.enter(Standing.ENDED, None)
            elif slot.standing is Standing.STARTING:
                # It has no shards, so there is nothing to wait for; and it may be deep in an import of the user's.
                self._kill(slot, None)
            elif slot.standing is Standing.READY:
                slot.enter(Standing.LEAVING, None)
                self._actions.append(Send(slot.worker, Stop(worker_timeout_s)))

    def _worsen(self, outcome: Outcome) -> None:
        if self._ending is not None:
            self._ending.worsen(outcome)

    def _force(self, outcome: Outcome, now: float) -> None:
        self._worsen(outcome)
        if self._ending is not None:
            self._ending.is_forced = True
            self._ending.deadline = now + EXIT_WAIT_S
        for slot in self._slots:
            if slot.standing in ALIVE:
                self._kill(slot, None)

    def _end_if_empty(self) -> None:
        if self._ending is not None and all(slot.standing is Standing.ENDED for slot in self._slots):
            self.outcome = self._ending.outcome

    # -- actions ------------------------------------------------------------------------------------------------

    def _spawn(self, slot: Slot, now: float) -> None:
        slot.begin(now, self._settings.start_timeout_s)
        self._actions.append(Spawn(slot.worker, slot.incarnation))

    def _kill(self, slot: Slot, fault: str | None, *, shows_stack: bool = False) -> None:
        if fault is not None:
            _log.warning("worker.killed", worker=slot.worker, incarnation=slot.incarnation, why=fault)
            slot.last_words = fault
        slot.enter(Standing.DYING, None)
        self._actions.append(Kill(slot.worker, shows_stack))

    def _take_actions(self) -> list[Action]:
        actions, self._actions = self._actions, []
        return actions
