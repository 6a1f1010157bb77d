"""Faults by which a node or a worker dies, or seems to: rows 1, 2, 3, 8, 9, 10 and 11 of the fault matrix."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

from millstream.loadgen import node_faults
from millstream.loadgen.chaos_stage import Round, Stage
from millstream.loadgen.chaos_troupe import Actor
from millstream.loadgen.fault_rules import Delay, Hold, Rule, Way
from millstream.loadgen.kafka_frames import Api
from millstream.loadgen.moments import Moment, Strike
from millstream.processor.errors import UnavailableError
from millstream.processor.ledger import DeadRecord, JoinRecord, WorkerDownRecord

# So many nodes are to be judged by their own beats before one is killed: it, and the one that will find it dead.
_RIPE = 2
_REJOIN_S = 60.0
_CALM_S = 1.5
_HIT_S = 10.0


def kill_worker(stage: Stage, number: int) -> Round:
    """SIGKILL to one worker process of a node that has two."""
    stage.troupe.await_settled()
    actor = stage.chance.choice(stage.troupe.actors)
    pid = stage.chance.choice(actor.process.children())
    shards = {worker: stage.ledger.membership.runs(worker) for worker in stage.troupe.workers_of(actor)}
    stage.random_phase()
    since, ordered = stage.mark(), Moment.now()
    os.kill(pid, signal.SIGKILL)
    strike = Strike("kill worker", f"process {pid} of {actor.name}", ordered, Moment.now())
    node = stage.ledger.node_id(actor.name)
    down = stage.ledger.await_record(WorkerDownRecord, lambda record: record.node == node, since, 15.0)
    fault = stage.new_round(number, strike, [actor], set())
    if down is None:
        fault.complaints.append("nobody said that the worker was down")
        return fault
    at, record = down
    # The agent says so as soon as it has seen the exit; a record more is all that lies between.
    fault.detection_ms = fault.told_ms = (at - ordered.monotonic_s) * 1000
    mine = [
        runs for who, runs in shards.items() if (who.worker, who.incarnation) == (record.worker, record.incarnation)
    ]
    fault.partitions = sorted(mine[0]) if mine else []
    stage.time_output(fault, strike)
    return fault


def kill_node(stage: Stage, number: int) -> Round:
    """SIGKILL to agent and workers of the oldest node; another one takes its place afterwards."""
    victim = stage.troupe.await_ripe(_RIPE)[0]
    stage.random_phase()
    return _killed(stage, number, victim, then=lambda: stage.troupe.start())


def _killed(stage: Stage, number: int, victim: Actor, then: Callable[[], object] | None = None) -> Round:
    node, shards, since = stage.ledger.node_id(victim.name), stage.troupe.shards_of(victim), stage.mark()
    strike = stage.troupe.kill(victim)
    fault = stage.new_round(number, strike, [victim], shards)
    stage.time_verdict(fault, strike, node, since)
    stage.time_output(fault, strike)
    if then is not None:
        then()
    return fault


_POINTS: tuple[tuple[str, Rule], ...] = (
    ("before outputs are stored", Rule(Hold(), Way.REQUESTS, apis={Api.PRODUCE})),
    ("outputs stored, answer unread", Rule(Hold(), Way.ANSWERS, apis={Api.PRODUCE})),
    ("before offsets are stored", Rule(Hold(), Way.REQUESTS, apis={Api.TXN_OFFSET_COMMIT})),
    ("offsets stored, answer unread", Rule(Hold(), Way.ANSWERS, apis={Api.TXN_OFFSET_COMMIT})),
    ("before the end is stored", Rule(Hold(), Way.REQUESTS, apis={Api.END_TXN})),
    ("end stored, answer unread", Rule(Hold(), Way.ANSWERS, apis={Api.END_TXN})),
)


def kill_in_commit(stage: Stage, number: int) -> Round:
    """A node is killed at a point of its commit, one after the other with each round."""
    name, rule = _POINTS[number % len(_POINTS)]
    if rule.apis == {Api.PRODUCE}:
        # Beats and the ledger are written as well; those are not meant.
        rule = Rule(rule.action, rule.way, apis=rule.apis, topics={stage.scene.output})
    victim = _proxied(stage)
    proxy = victim.proxy
    assert proxy is not None
    stage.random_phase()
    node, shards, since = stage.ledger.node_id(victim.name), stage.troupe.shards_of(victim), stage.mark()
    held = proxy.apply(rule)
    deadline = time.monotonic() + _HIT_S
    while not held.hits:
        if time.monotonic() > deadline:
            raise UnavailableError(f"node {victim.name} did not come to this point of a commit: {name}")
        time.sleep(0.001)
    strike = stage.troupe.strike(victim, node_faults.kill)
    # With the node its connections are gone, and what was held back for them.
    proxy.lift(held)
    stage.troupe.remove(victim)
    fault = stage.new_round(number, strike, [victim], shards)
    fault.fault = f"kill node, {name}"
    stage.time_verdict(fault, strike, node, since)
    stage.time_output(fault, strike)
    stage.troupe.start(proxy=True)
    return fault


def _proxied(stage: Stage) -> Actor:
    """The oldest ripe node that is behind a proxy."""
    while True:
        ripe = stage.troupe.await_ripe(len(stage.troupe.actors) - 1)
        if behind := [actor for actor in ripe if actor.proxy is not None]:
            return behind[0]
        time.sleep(0.1)


def freeze(seconds: float) -> Callable[[Stage, int], Round]:
    """SIGSTOP to a whole node for so long, then SIGCONT."""

    def play(stage: Stage, number: int) -> Round:
        victim = stage.troupe.await_ripe(len(stage.troupe.actors))[0]
        node, shards = stage.ledger.node_id(victim.name), stage.troupe.shards_of(victim)
        stage.random_phase()
        since = stage.mark()
        strike = stage.troupe.strike(victim, node_faults.freeze)
        time.sleep(max(0.0, strike.ordered.monotonic_s + seconds - time.monotonic()))
        woken = node_faults.thaw(victim.pid)
        fault = stage.new_round(number, strike, [victim], shards)
        fault.fault = f"freeze node for {seconds:g} s"
        if seconds >= 0.5:
            stage.time_verdict(fault, strike, node, since)
            stage.time_output(fault, strike)
            await_rebirth(stage, fault, victim, since, woken)
        else:
            stage.time_output(fault, strike)
            time.sleep(_CALM_S)
            dead = [record for _, record in stage.ledger.all_of(DeadRecord, since) if record.node == node]
            fault.notes["verdicts"] = float(len(dead))
            if dead and stage.settings.level.value != "full":
                fault.complaints.append(f"a verdict after {dead[0].silence_ms:.0f} ms of silence")
        return fault

    return play


def freeze_until_dead(stage: Stage, number: int) -> Round:
    """SIGSTOP to a whole node until it is found dead, however long that takes, then SIGCONT."""
    victim = stage.troupe.await_ripe(len(stage.troupe.actors))[0]
    node, shards = stage.ledger.node_id(victim.name), stage.troupe.shards_of(victim)
    stage.random_phase()
    since = stage.mark()
    strike = stage.troupe.strike(victim, node_faults.freeze)
    fault = stage.new_round(number, strike, [victim], shards)
    stage.time_verdict(fault, strike, node, since)
    stage.time_output(fault, strike)
    await_rebirth(stage, fault, victim, since, node_faults.thaw(victim.pid))
    return fault


def await_rebirth(stage: Stage, fault: Round, victim: Actor, since: int, healed: Strike) -> None:
    """A node that was found dead while it lived joins again as a new one; a complaint where it does not."""
    old = {record.node for _, record in stage.ledger.all_of(DeadRecord, since)}
    found = stage.ledger.await_record(
        JoinRecord, lambda record: record.name == victim.name and record.node not in old, since, _REJOIN_S
    )
    if found is None:
        fault.complaints.append(f"node {victim.name} did not join again within {_REJOIN_S:g} s")
        return
    fault.notes["joined_again_ms"] = round((found[0] - healed.ordered.monotonic_s) * 1000, 1)


def freeze_detector(seconds: float) -> Callable[[Stage, int], Round]:
    """SIGSTOP to the agent that would give the next verdict: when it wakes it must not take all others for dead."""

    def play(stage: Stage, number: int) -> Round:
        first = stage.troupe.await_ripe(len(stage.troupe.actors))[0]
        node, shards = stage.ledger.node_id(first.name), stage.troupe.shards_of(first)
        stage.random_phase()
        since = stage.mark()
        stage.troupe.note_struck(first)
        ordered = Moment.now()
        os.kill(first.pid, signal.SIGSTOP)
        time.sleep(seconds)
        woken_at = Moment.now()
        os.kill(first.pid, signal.SIGCONT)
        strike = Strike(f"freeze agent for {seconds:g} s", first.name, ordered, Moment.now())
        fault = stage.new_round(number, strike, [first], shards)
        if seconds >= 0.5:
            stage.time_verdict(fault, strike, node, since)
            await_rebirth(stage, fault, first, since, Strike("thaw", first.name, woken_at, woken_at))
        time.sleep(_CALM_S)
        wrong = [r for _, r in stage.ledger.all_of(DeadRecord, since) if r.by == node]
        if wrong:
            fault.complaints.append(f"having woken, it said of {', '.join(r.node for r in wrong)} that they are dead")
        return fault

    return play


def kill_two(stage: Stage, number: int) -> Round:
    """Two of four nodes die within a millisecond."""
    victims = stage.troupe.await_ripe(len(stage.troupe.actors))[:2]
    return _kill_all_of(stage, number, victims, "kill two nodes together")


def _kill_all_of(stage: Stage, number: int, victims: list[Actor], name: str) -> Round:
    ids = [stage.ledger.node_id(victim.name) for victim in victims]
    shards = set().union(*(stage.troupe.shards_of(victim) for victim in victims))
    stage.random_phase()
    since = stage.mark()
    strikes = [stage.troupe.strike(victim, node_faults.kill) for victim in victims]
    for victim in victims:
        stage.troupe.remove(victim)
    whole = Strike(name, ", ".join(victim.name for victim in victims), strikes[0].ordered, strikes[-1].done)
    fault = stage.new_round(number, whole, victims, shards)
    stage.time_verdict(fault, whole, ids[0], since)
    stage.time_output(fault, whole)
    for _ in victims:
        stage.troupe.start()
    return fault


def kill_successor(stage: Stage, number: int) -> Round:
    """A node dies, and at the verdict the node that gets its shards dies, too. A chain of three with four nodes."""
    victim = stage.troupe.await_ripe(len(stage.troupe.actors))[0]
    node, shards, since = stage.ledger.node_id(victim.name), stage.troupe.shards_of(victim), stage.mark()
    stage.random_phase()
    first = stage.troupe.kill(victim)
    dead = stage.ledger.await_record(DeadRecord, lambda record: record.node == node, since, 15.0)
    holder = stage.ledger.membership.holders[min(shards)].node
    successor = next(actor for actor in stage.troupe.actors if stage.ledger.node_id(actor.name) == holder)
    shards |= stage.troupe.shards_of(successor)
    second = stage.troupe.kill(successor)
    fault = stage.new_round(number, second, [victim, successor], shards)
    fault.fault = "kill node, then its successor at the verdict"
    if dead is None:
        fault.complaints.append("no verdict on the first")
    fault.notes["second_after_ms"] = round((second.ordered.monotonic_s - first.ordered.monotonic_s) * 1000, 1)
    stage.time_verdict(fault, second, holder, since)
    stage.time_output(fault, second)
    stage.troupe.start()
    stage.troupe.start()
    return fault


def kill_everything(stage: Stage, number: int) -> Round:
    """Every node dies; new ones start from nothing. The time is that of a start."""
    stage.troupe.await_settled()
    victims = list(stage.troupe.actors)
    stage.random_phase()
    strikes = [stage.troupe.strike(victim, node_faults.kill) for victim in victims]
    for victim in victims:
        stage.troupe.remove(victim)
    whole = Strike("kill every node, cold start", "all", strikes[0].ordered, strikes[-1].done)
    fault = stage.new_round(number, whole, victims, set(range(stage.settings.partitions)))
    for _ in victims:
        stage.troupe.start()
    stage.time_output(fault, whole, 120.0, curved=False)
    return fault


def two_verdicts(stage: Stage, number: int) -> Round:
    """A node dies, and one that could find it dead learns half a second late what the others have written."""
    ripe = stage.troupe.await_ripe(len(stage.troupe.actors))
    slow = next(actor for actor in ripe if actor.proxy is not None)
    victim = next(actor for actor in ripe if actor is not slow)
    assert slow.proxy is not None
    ledger = f"{stage.scene.pipeline}.ledger"
    late = slow.proxy.apply(Rule(Delay(0.5), Way.ANSWERS, apis={Api.FETCH}, topics={ledger}))
    time.sleep(0.6)
    stage.random_phase()
    since = stage.mark()
    node = stage.ledger.node_id(victim.name)
    fault = _killed(stage, number, victim)
    slow.proxy.lift(late)
    said = [record for _, record in stage.ledger.all_of(DeadRecord, since) if record.node == node]
    fault.fault = "kill node, one witness learns late"
    fault.notes["verdicts_written"] = float(len(said))
    counted = [verdict for verdict in stage.ledger.membership.verdicts if verdict.node == node]
    if len(counted) != 1:
        fault.complaints.append(f"{len(counted)} verdicts on {node} counted")
    stage.troupe.start()
    return fault


def restart_at_once(stage: Stage, number: int) -> Round:
    """A dead node is started again within 100 ms, under the same name, or (every other round) right after DEAD."""
    victim = stage.troupe.await_ripe(len(stage.troupe.actors))[0]
    node, shards, since = stage.ledger.node_id(victim.name), stage.troupe.shards_of(victim), stage.mark()
    stage.random_phase()
    strike = stage.troupe.strike(victim, node_faults.kill)
    victim.process.kill()
    is_before = number % 2 == 0
    fault = stage.new_round(number, strike, [victim], shards)
    if is_before:
        time.sleep(stage.chance.uniform(0.0, 0.08))
        victim.start()
        stage.time_verdict(fault, strike, node, since)
    else:
        stage.time_verdict(fault, strike, node, since)
        victim.start()
    fault.fault = f"kill node, restart {'within 100 ms' if is_before else 'at the verdict'}"
    stage.time_output(fault, strike)
    await_rebirth(stage, fault, victim, since, strike)
    stage.troupe.await_settled()
    again = stage.ledger.node_id(victim.name)
    time.sleep(_CALM_S)
    if again == node or again not in stage.ledger.membership.nodes:
        fault.complaints.append(f"the new life {again} of {victim.name} was harmed")
    return fault
