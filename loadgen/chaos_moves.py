"""Planned moves, and what happens while one is under way (row 15): how long each shard's output stands still."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from millstream.loadgen import node_faults
from millstream.loadgen.chaos_stage import Round, Stage
from millstream.loadgen.chaos_timing import longest_gaps
from millstream.loadgen.chaos_troupe import Actor
from millstream.loadgen.moments import Moment, Strike
from millstream.processor.ledger import DeadRecord, JoinRecord
from millstream.processor.membership import WorkerId

_BEFORE_S, _AFTER_S = 1.0, 1.0
_MOVED_S = 60.0
_EXIT_S = 30.0


def scale_out(stage: Stage, number: int) -> Round:
    """One more node joins, and gets its share; with every other round the youngest leaves again."""
    stage.troupe.await_settled()
    if number % 2:
        return _drained(stage, number, stage.troupe.actors[-1], "a node leaves")
    return _moved(stage, number, "a node joins", lambda: stage.troupe.start())


def rolling_restart(stage: Stage, number: int) -> Round:
    """The oldest node is drained, and another is started in its place."""
    stage.troupe.await_settled()
    fault = _drained(stage, number, stage.troupe.actors[0], "a node is restarted")
    more = _moved(stage, number, fault.fault, lambda: stage.troupe.start())
    for partition, pause_ms in more.pause_ms.items():
        fault.pause_ms[partition] = max(pause_ms, fault.pause_ms.get(partition, 0.0))
    fault.partitions = sorted(fault.pause_ms)
    # Both halves settle, and only the second one starts a process.
    fault.notes |= more.notes
    fault.complaints += more.complaints
    return fault


def _drained(stage: Stage, number: int, actor: Actor, name: str) -> Round:
    def drain() -> Actor:
        stage.troupe.actors.remove(actor)
        os.kill(actor.pid, signal.SIGTERM)
        return actor

    fault = _moved(stage, number, name, drain)
    code = actor.process.await_exit(_EXIT_S)
    if code != 0:
        fault.complaints.append(f"node {actor.name} ended with {code} when it was to drain")
    actor.process.kill()
    actor.stack.close()
    return fault


def _moved(stage: Stage, number: int, name: str, change: Callable[[], Actor]) -> Round:
    """Make a change, wait until all shards are where they should be, and look how long those that moved stood still."""
    before = dict(stage.ledger.membership.holders)
    stage.random_phase()
    since, ordered = stage.mark(), Moment.now()
    actor = change()
    strike = Strike(name, actor.name, ordered, Moment.now())
    fault = Round(number, name, [actor.name])
    deadline = time.monotonic() + _MOVED_S
    while stage.troupe.unsettled() is not None or stage.ledger.membership.holders == before:
        if time.monotonic() > deadline:
            fault.complaints.append(f"after {_MOVED_S:g} s: {stage.troupe.unsettled()}")
            break
        time.sleep(0.02)
    settled = time.monotonic()
    fault.notes["settled_ms"] = round((settled - ordered.monotonic_s) * 1000, 1)
    time.sleep(_AFTER_S)
    after = stage.ledger.membership.holders
    moved = [shard for shard, holder in after.items() if before.get(shard) != holder]
    start = strike.ordered.monotonic_s - _BEFORE_S
    gaps = longest_gaps(stage.output.since(start), after, strike.ordered.monotonic_s, settled + _AFTER_S)
    fault.partitions = sorted(moved)
    fault.pause_ms = {partition: gaps[partition] * 1000 for partition in moved}
    # What the machine does to everyone, the start of a process on the same cores first of all, is not the move's doing.
    if others := [gap for partition, gap in gaps.items() if partition not in moved]:
        fault.notes["pause_of_others_ms"] = round(max(others) * 1000, 1)
    wrong = [record.node for _, record in stage.ledger.all_of(DeadRecord, since)]
    if wrong:
        fault.complaints.append(f"verdicts on {', '.join(wrong)} during a planned move")
    return fault


def join_while_one_dies(stage: Stage, number: int) -> Round:
    """Row 15: as soon as a new node is in, shards are on their way to it; then the oldest one dies."""
    victim = stage.troupe.await_ripe(2)[0]
    newcomer = stage.troupe.start()
    since = stage.mark()
    stage.ledger.await_record(JoinRecord, lambda record: record.name == newcomer.name, since, 60.0)
    deadline = time.monotonic() + 30.0
    while not _is_moving(stage, newcomer) and time.monotonic() < deadline:
        time.sleep(0.001)
    node, shards = stage.ledger.node_id(victim.name), stage.troupe.shards_of(victim)
    strike = stage.troupe.strike(victim, node_faults.kill)
    stage.troupe.remove(victim)
    fault = stage.new_round(number, strike, [victim], shards)
    fault.fault = "kill node while another joins"
    stage.time_verdict(fault, strike, node, since)
    stage.time_output(fault, strike)
    return fault


def _is_moving(stage: Stage, newcomer: Actor) -> bool:
    """Whether shards are planned for the newcomer, be they there already or not."""
    node = stage.ledger.node_id(newcomer.name)
    planned: list[WorkerId] = list(stage.ledger.membership.planned.values())
    return any(worker.node == node for worker in planned)
