"""What a node does about its workers: a state machine that is told what happened and answers what to do.

    waiting ──► starting ──► ready ──► leaving ──► ended
       ▲            │          │          │
       └────────────┴── died ──┴──────────┘         dying: killed, its exit is still to come

It owns neither processes nor clock. The agent hands it each message, exit, signal and the time, and carries out the
actions that it answers, so that every order of events can be tried in a test. Which shards a worker runs is decided
elsewhere, in the membership (`member.py`): that is told which workers there are and what they have let go of, and says
what each is to run.
"""

from __future__ import annotations

import logging
from collections import Counter, deque
from collections.abc import Collection, Iterator, Mapping
from typing import Final

from millstream.processor import endings
from millstream.processor.actions import Action, Depart, Leaves, LetGo, Outcome, Send
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
from millstream.processor.node_settings import NodeSettings
from millstream.processor.restarts import deaths_in_row, delay_s, is_crash_loop
from millstream.processor.shard_host import ShardReleased, ShardRestarted
from millstream.processor.slot import ALIVE, Slot, Standing, WorkerView
from millstream.processor.slots import Slots
from millstream.processor.stage_watch import Overdue
from millstream.processor.stalled import Stalled

_log: Final = EventLog(logging.getLogger("millstream.node"))

# A worker that has said its last words has this long to be gone.
EXIT_WAIT_S: Final = 5.0
# A node whose workers are gone waits so long until the ledger has its goodbye. Without it the others find it dead,
# which takes them a third of a second.
_GOODBYE_WAIT_S: Final = 2.0


class Supervisor:
    """Decides for one node. `outcome` is set once there is nothing more to do."""

    def __init__(self, settings: NodeSettings) -> None:
        self._settings = settings
        self._slots = Slots(settings.workers, settings.start_timeout_s)
        self._pipeline: str | None = None
        self._shards = 0
        self._has_left = False
        # Shards that have reached the end of the run here, and those that other nodes run.
        self._finished: set[int] = set()
        self._elsewhere: frozenset[int] | None = None
        self._fruitless_deaths: deque[float] = deque(maxlen=settings.restarts.crashes_max + 1)
        self._ending: Ending | None = None
        self.shard_restarts = 0
        self.stalled_stages: Counter[str] = Counter()
        self.outcome: Outcome | None = None

    # -- what happened ------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[Action]:
        """The node begins: all workers start."""
        for slot in self._slots:
            self._slots.spawn(slot, now)
        return self._slots.take_actions()

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
                self._slots.ask(LetGo(worker, shard))
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
        self._announce(now)
        return self._slots.take_actions()

    def own(
        self,
        worker: int,
        incarnation: int,
        shards: frozenset[int],
        stalls: Collection[Stalled],
        tokens: Mapping[int, int] | None = None,
    ) -> list[Action]:
        """A worker is to run these shards and no others; `stalls` are the batches at which workers hung.

        `tokens` are those of their ownership, see `ownership_token`.
        """
        slot = self._slots[worker]
        if slot.incarnation != incarnation:
            return []
        is_gone = slot.standing not in ALIVE
        for shard in sorted(slot.shards - shards):
            if is_gone or shard in slot.finished:
                # Nobody runs it any more, so there is nobody who would let go of it.
                self._slots.ask(LetGo(worker, shard))
        slot.shards, slot.known_stalls = shards, tuple(stalls)
        if slot.standing is Standing.READY:
            self._slots.ask(Send(worker, Assign(sorted(shards), list(stalls), dict(tokens or {}))))
            _log.info("shards.assigned", worker=worker, shards=sorted(shards))
        elif is_gone:
            self._call_back(slot)
        return self._slots.take_actions()

    def elsewhere(self, shards: frozenset[int], now: float) -> list[Action]:
        """The ledger knows all workers that are ready, and other nodes run these shards now."""
        self._elsewhere = shards
        self._end_if_complete(now)
        return self._slots.take_actions()

    def overdue(self, worker: int, incarnation: int, shards: Collection[int]) -> list[Action]:
        """A worker has not released shards in time."""
        slot = self._slots[worker]
        if slot.incarnation == incarnation and slot.standing is Standing.READY:
            self._slots.kill(slot, f"did not release shards {sorted(shards)} in time")
        return self._slots.take_actions()

    def refused(self, text: str, now: float) -> list[Action]:
        """The node cannot take part in the membership, and trying again does not help."""
        self._has_left = True
        self._end(Outcome(1, text), now)
        self._end_if_empty(now)
        return self._slots.take_actions()

    def left(self, now: float) -> list[Action]:
        """The ledger has the node's goodbye."""
        self._has_left = True
        self._end_if_empty(now)
        return self._slots.take_actions()

    def exited(self, worker: int, exit_text: str, *, is_clean: bool, now: float) -> list[Action]:
        """A worker's process is gone; nothing more will be heard of this incarnation."""
        slot = self._slots[worker]
        before = slot.standing
        slot.enter(Standing.ENDED, None)
        freed = slot.open_shards
        if not slot.is_done or self._ending is not None:
            # The shards come first: a restart can wait, they should not.
            self._slots.tell_gone(slot, f"{exit_text}, after: {slot.last_words}" if slot.last_words else exit_text)
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
            if not has_left and before is not Standing.DYING and slot.last_words is None:
                self._ending.worsen(endings.died_while_draining(slot.worker, exit_text))
        elif slot.is_done:
            self._call_back(slot)
        else:
            self._on_exit_while_running(slot, has_left, exit_text, now)
        self._announce(now)
        self._end_if_empty(now)
        return self._slots.take_actions()

    def stalled(self, worker: int, overdue: Overdue) -> list[Action]:
        """A worker's current incarnation hangs in a stage."""
        slot = self._slots[worker]
        if slot.standing in (Standing.READY, Standing.LEAVING):
            fault = endings.hung(overdue, slot.known_stalls)
            self.stalled_stages[overdue.stage.name] += 1
            slot.stalls = overdue.stalls
            # It is the record that is to blame, and it will be given up: no number of such deaths is a crash loop.
            slot.is_to_blame = False
            if self._ending is not None:
                self._ending.worsen(Outcome(1, f"worker {worker} was killed while it drained: {fault}"))
            self._slots.kill(slot, fault, shows_stack=True)
        return self._slots.take_actions()

    def stop(self, now: float, signal_number: int | None) -> list[Action]:
        """Somebody wants the node to end: the first time it drains, the second time it is cut short."""
        if self._ending is None:
            _log.info("node.draining", timeout_s=self._settings.drain_timeout_s)
            self._end(Outcome(0), now)
        elif not self._ending.is_forced and signal_number is not None:
            self._force(self._ending, endings.cut_short(signal_number), now)
        self._end_if_empty(now)
        return self._slots.take_actions()

    def tick(self, now: float) -> list[Action]:
        """The time is `now`; due whenever `next_deadline` has passed."""
        if self._ending is not None:
            self._tick_ending(self._ending, now)
        else:
            self._tick_running(now)
        self._end_if_empty(now)
        return self._slots.take_actions()

    def next_deadline(self) -> float | None:
        """When `tick` has something to do, if nothing else happens."""
        if self._ending is not None:
            return self._ending.deadline
        deadlines = [*(slot.deadline for slot in self._slots), self._slots.gather_until]
        return min((deadline for deadline in deadlines if deadline is not None), default=None)

    # -- what can be seen from outside --------------------------------------------------------------------------

    @property
    def phase(self) -> str:
        """One word for where the node is: starting, running, draining or ended."""
        if self.outcome is not None:
            return "ended"
        if self._ending is not None:
            return "draining"
        return "starting" if self._elsewhere is None else "running"

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
        return self._slots.views()

    # -- messages -----------------------------------------------------------------------------------------------

    def _on_ready(self, slot: Slot, ready: Ready, now: float) -> None:
        if slot.standing is not Standing.STARTING:
            return
        if self._pipeline is None:
            self._pipeline, self._shards = ready.pipeline, ready.shards
            self._slots.gather_until = now + self._settings.gather_s
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

    def _on_leaving(self, slot: Slot, now: float) -> None:
        if slot.standing is not Standing.READY:
            return
        _log.info("worker.leaving", worker=slot.worker, incarnation=slot.incarnation)
        slot.enter(Standing.LEAVING, now + self._settings.drain_timeout_s + EXIT_WAIT_S)
        self._slots.ask(Leaves(slot.worker))

    def _on_finished(self, slot: Slot, shard: int, now: float) -> None:
        slot.finished.add(shard)
        self._finished.add(shard)
        _log.info("shard.finished", worker=slot.worker, shard=shard)
        if shard not in slot.shards:
            # It was asked for meanwhile, and has come to its end before the worker knew.
            self._slots.ask(LetGo(slot.worker, shard))
        self._end_if_complete(now)

    def _on_failed(self, slot: Slot, failed: Failed, now: float) -> None:
        slot.last_words = failed.text
        slot.is_to_blame = failed.trouble is not Trouble.WORLD
        if slot.standing is not Standing.DYING:
            slot.enter(Standing.LEAVING, now + EXIT_WAIT_S)
        # Before the node has ever worked, trouble is more likely a mistake than bad luck, and someone is watching.
        if failed.trouble is Trouble.FINAL or self._pipeline is None or self._ending is not None:
            self._end(Outcome(failed.exit_code, failed.text), now)
        else:
            _log.warning("worker.failed", worker=slot.worker, incarnation=slot.incarnation, error=failed.text)

    # -- exits --------------------------------------------------------------------------------------------------

    def _on_exit_while_running(self, slot: Slot, has_left: bool, exit_text: str, now: float) -> None:
        policy = self._settings.restarts
        lived_s = now - slot.started_at
        slot.deaths_in_row = deaths_in_row(0 if has_left or slot.stalls else slot.deaths_in_row, lived_s, policy)
        is_fruitless = not slot.has_progressed and lived_s < policy.good_life_s
        if is_fruitless and slot.is_to_blame and not has_left:
            self._fruitless_deaths.append(now)
        if is_crash_loop(self._fruitless_deaths, now, policy):
            self._end(endings.crash_loop(policy, slot, exit_text), now)
            return
        wait_s = delay_s(slot.deaths_in_row, policy)
        slot.enter(Standing.WAITING, now + wait_s)
        _log.info("worker.restart_planned", worker=slot.worker, in_s=wait_s, deaths_in_row=slot.deaths_in_row)

    def _call_back(self, slot: Slot) -> None:
        """A worker that had reached the end of its run is needed again where shards have come to it after that."""
        if slot.is_done and slot.open_shards and self._ending is None:
            slot.enter(Standing.WAITING, float("-inf"))

    # -- time ---------------------------------------------------------------------------------------------------

    def _tick_running(self, now: float) -> None:
        for slot in self._slots:
            is_due = slot.deadline is not None and slot.deadline <= now
            if slot.standing is Standing.WAITING and is_due:
                slot.restarts += 1
                self._slots.spawn(slot, now)
            elif slot.standing is Standing.STARTING and is_due:
                self._slots.kill(slot, f"did not start within {self._settings.start_timeout_s:g} s")
            elif slot.standing is Standing.LEAVING and is_due:
                self._slots.kill(slot, "did not exit in time")
        self._announce(now)

    def _tick_ending(self, ending: Ending, now: float) -> None:
        if now < ending.deadline:
            return
        if ending.is_forced or ending.is_empty:
            # A killed process that does not die is stuck in the kernel; it can do no more, and waiting helps no one.
            self.outcome = ending.outcome
            return
        stuck = [slot.worker for slot in self._slots if slot.standing in ALIVE]
        self._force(ending, endings.drained_too_slowly(stuck, self._settings.drain_timeout_s), now)

    def _announce(self, now: float) -> None:
        if self._pipeline is not None and self._ending is None:
            self._slots.announce(now)

    # -- endings ------------------------------------------------------------------------------------------------

    def _end(self, outcome: Outcome, now: float) -> None:
        """Begin to drain; where that has begun already, only note what went wrong."""
        if self._ending is not None:
            self._ending.worsen(outcome)
            return
        self._ending = Ending(outcome, now + self._settings.drain_timeout_s)
        # Workers get less than the whole time, so that one which is late can still say why.
        worker_timeout_s = max(self._settings.drain_timeout_s - 1.0, self._settings.drain_timeout_s * 0.8)
        for slot in self._slots:
            if slot.standing in (Standing.WAITING, Standing.ENDED):
                slot.enter(Standing.ENDED, None)
                self._slots.tell_gone(slot, "it has reached the end of its run")
            elif slot.standing is Standing.STARTING:
                # It has no shards, so there is nothing to wait for; and it may be deep in an import of the user's.
                self._slots.kill(slot, None)
            elif slot.standing is Standing.READY:
                slot.enter(Standing.LEAVING, None)
                self._slots.ask(Send(slot.worker, Stop(worker_timeout_s)))
        self._has_left |= not self._slots.has_announced
        self._slots.ask(Depart())

    def _end_if_complete(self, now: float) -> None:
        """In a run with an end: what others run comes to its end there, or here once they have left."""
        if self._finished and self._finished | (self._elsewhere or set()) >= set(range(self._shards)):
            self._end(Outcome(0), now)

    def _force(self, ending: Ending, outcome: Outcome, now: float) -> None:
        ending.worsen(outcome)
        ending.is_forced = True
        ending.deadline = now + EXIT_WAIT_S
        self._slots.kill_all()

    def _end_if_empty(self, now: float) -> None:
        if self._ending is None or not all(slot.standing is Standing.ENDED for slot in self._slots):
            return
        if self._has_left or self._ending.is_forced:
            self.outcome = self._ending.outcome
        elif not self._ending.is_empty:
            self._ending.is_empty = True
            self._ending.deadline = min(self._ending.deadline, now + _GOODBYE_WAIT_S)
