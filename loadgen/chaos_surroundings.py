"""Faults of what nodes stand on: user code, network, brokers, CPU time, clocks. Rows 4 to 7 and 12 to 14."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from millstream.connectors.kafka.development_broker import DevelopmentBroker
from millstream.connectors.kafka.development_cluster import DevelopmentCluster
from millstream.loadgen.chaos_deaths import await_rebirth
from millstream.loadgen.chaos_stage import Round, Stage
from millstream.loadgen.chaos_troupe import Actor
from millstream.loadgen.cpu_pressure import CpuQuota
from millstream.loadgen.fault_rules import Delay, Reset, Rule, Way, cut
from millstream.loadgen.kafka_frames import TO_TRANSACTION_COORDINATOR, Api
from millstream.loadgen.moments import Moment, Strike
from millstream.loadgen.networks import Cut
from millstream.loadgen.node_faults import node_processes
from millstream.processor.errors import UnavailableError
from millstream.processor.ledger import DeadRecord, WorkerDownRecord

T = TypeVar("T")

_CALM_S = 1.5
_CUT_S = 3.0
_SOAK_S = 30.0
_HOUR_S = 3600.0
TRAP = "trap"


def _oldest(stage: Stage) -> Actor:
    return stage.troupe.await_ripe(len(stage.troupe.actors))[0]


def _oldest_with(stage: Stage, what: Callable[[Actor], T | None]) -> tuple[Actor, T]:
    """The node that is there for longest of those that have `what` the fault is done with, and that."""
    ripe = stage.troupe.await_ripe(len(stage.troupe.actors))
    return next((actor, found) for actor in ripe if (found := what(actor)) is not None)


def _at_a_random_moment(stage: Stage, victim: Actor) -> tuple[str | None, set[int], int]:
    """Wait for it; then who the victim is in the ledger, its shards, and where in the ledger its fault begins."""
    node, shards = stage.ledger.node_id(victim.name), stage.troupe.shards_of(victim)
    stage.random_phase()
    return node, shards, stage.mark()


def _no_verdicts(stage: Stage, fault: Round, since: int, *, is_saturated: bool = False) -> None:
    dead = [record for _, record in stage.ledger.all_of(DeadRecord, since)]
    fault.notes["verdicts"] = float(len(dead))
    if dead and not is_saturated:
        fault.complaints.append(f"a verdict on {dead[0].node} after {dead[0].silence_ms:.0f} ms of silence")


def block(what: str, seconds: float) -> Callable[[Stage, int], Round]:
    """Row 4: user code blocks its loop, or holds its interpreter. The node lives; its worker does for up to 1 s."""

    def play(stage: Stage, number: int) -> Round:
        stage.troupe.await_ripe(len(stage.troupe.actors))
        stage.random_phase()
        since, trap = stage.mark(), stage.directory / TRAP
        before = {path.name for path in stage.directory.glob(f"{TRAP}.*")}
        ordered = Moment.now()
        fresh = stage.directory / f"new-{TRAP}"
        fresh.write_text(f"{what} {seconds}")
        fresh.rename(trap)
        strike = Strike(f"user code: {what} {seconds:g} s", "one worker", ordered, Moment.now())
        fault = stage.new_round(number, strike, [], set(range(stage.settings.partitions)))
        stage.time_output(fault, strike)
        time.sleep(_CALM_S)
        sprung = {path.name for path in stage.directory.glob(f"{TRAP}.*")} - before
        if trap.exists() or len(sprung) != 1:
            fault.complaints.append("nobody was trapped")
        downs = [record for _, record in stage.ledger.all_of(WorkerDownRecord, since)]
        fault.notes["workers_replaced"] = float(len(downs))
        is_over = seconds > stage.stage_timeout_s
        if is_over != bool(downs):
            fault.complaints.append(f"{len(downs)} workers were replaced ({[down.why for down in downs]})")
        _no_verdicts(stage, fault, since)
        return fault

    return play


def cut_off(lost: Cut) -> Callable[[Stage, int], Round]:
    """Row 5: a node is cut off from every broker, then joined to the network again."""

    def play(stage: Stage, number: int) -> Round:
        victim, network = _oldest_with(stage, lambda actor: actor.network)
        node, shards, since = _at_a_random_moment(stage, victim)
        strike = stage.troupe.strike(victim, lambda _pid: network.cut(lost))
        fault = stage.new_round(number, strike, [victim], shards)
        fault.fault = f"node cut off: {lost.value}"
        stage.time_verdict(fault, strike, node, since)
        stage.time_output(fault, strike)
        time.sleep(max(0.0, strike.ordered.monotonic_s + _CUT_S - time.monotonic()))
        healed = network.heal()
        await_rebirth(stage, fault, victim, since, healed)
        return fault

    return play


def cut_topic(what: str) -> Callable[[Stage, int], Round]:
    """Row 6: a node reaches the brokers, but for the beats' leader, or but for that of its output."""

    def play(stage: Stage, number: int) -> Round:
        victim, proxy = _oldest_with(stage, lambda actor: actor.proxy)
        node, shards, since = _at_a_random_moment(stage, victim)
        ordered = Moment.now()
        stage.troupe.note_struck(victim)
        topic = f"{stage.scene.pipeline}.beats" if what == "beats" else stage.scene.output
        laid = proxy.apply(*cut(topics={topic}))
        strike = Strike(f"node cut off from {what}", victim.name, ordered, Moment.now())
        fault = stage.new_round(number, strike, [victim], shards)
        if what == "beats":
            # It goes on with its shards until it hears of the verdict: what comes out first proves no takeover.
            stage.time_verdict(fault, strike, node, since)
        time.sleep(max(0.0, ordered.monotonic_s + _CUT_S - time.monotonic()))
        healed = Moment.now()
        proxy.lift(laid)
        if what == "beats":
            await_rebirth(stage, fault, victim, since, Strike("heal", victim.name, healed, Moment.now()))
        else:
            fault.whose = "the network's"
            stage.time_output(fault, strike)
            _no_verdicts(stage, fault, since)
        return fault

    return play


_TROUBLES: tuple[tuple[str, Rule], ...] = (
    ("200 ms on the way to the coordinator", Rule(Delay(0.2), Way.REQUESTS, apis=TO_TRANSACTION_COORDINATOR)),
    ("2 % of requests break their connection", Rule(Reset(), Way.REQUESTS, probability=0.02)),
    ("answers to EndTxn held for 1 s", Rule(Delay(1.0), Way.ANSWERS, apis={Api.END_TXN})),
    ("answers to EndTxn held for 10 s", Rule(Delay(10.0), Way.ANSWERS, apis={Api.END_TXN}, times=1)),
)


def slow_coordinator(stage: Stage, number: int) -> Round:
    """Row 7: what goes to the coordinator is slow, breaks, or is answered late; another trouble with each round."""
    victim, proxy = _oldest_with(stage, lambda actor: actor.proxy)
    name, rule = _TROUBLES[number % len(_TROUBLES)]
    shards = stage.troupe.shards_of(victim)
    stage.random_phase()
    # With 2 % of its requests lost a node may miss enough beats to be found dead, rightly.
    stage.troupe.note_struck(victim)
    since, ordered = stage.mark(), Moment.now()
    laid = proxy.apply(rule)
    strike = Strike(name, victim.name, ordered, Moment.now())
    fault = stage.new_round(number, strike, [victim], shards)
    fault.whose = "the network's"
    time.sleep(4.0)
    stage.time_output(fault, strike)
    fault.notes["struck_frames"] = float(laid.hits)
    proxy.lift(laid)
    fault.notes["verdicts"] = float(len(stage.ledger.all_of(DeadRecord, since)))
    time.sleep(_CALM_S)
    return fault


def kill_broker(stage: Stage, number: int) -> Round:
    """Row 12: the only broker is killed, and started again with its data.

    Killed, not stopped: a broker that stops in order while nobody can take over its partitions (Kafka 4.4) may write
    to its log that a transaction is complete without having written the commit markers; that one then stays open.
    """
    broker = stage.brokers
    assert isinstance(broker, DevelopmentBroker)
    stage.troupe.await_ripe(len(stage.troupe.actors))
    stage.random_phase()
    since, ordered = stage.mark(), Moment.now()
    broker.kill()
    strike = Strike("broker killed and started again", "broker", ordered, Moment.now())
    fault = stage.new_round(number, strike, [], set(range(stage.settings.partitions)))
    fault.whose = "the broker's"
    broker.start()
    up = Moment.now()
    away_ms = (up.monotonic_s - ordered.monotonic_s) * 1000
    fault.notes["broker_away_ms"] = round(away_ms, 1)
    stage.time_output(fault, strike, 90.0, curved=False)
    fault.notes["output_after_broker_ms"] = round(max(fault.takeover_ms.values(), default=0.0) - away_ms, 1)
    time.sleep(2 * _CALM_S)
    _no_verdicts(stage, fault, since)
    stage.troupe.await_settled()
    return fault


def lose_leader(of: str, how: str) -> Callable[[Stage, int], Round]:
    """Row 12 with three brokers: the leader of beats, ledger or of the first output partition is killed, or stopped."""

    def play(stage: Stage, number: int) -> Round:
        cluster = stage.brokers
        assert isinstance(cluster, DevelopmentCluster)
        cluster.await_in_sync()
        stage.troupe.await_ripe(len(stage.troupe.actors))
        topic = stage.scene.output if of == "output" else f"{stage.scene.pipeline}.{of}"
        leader = cluster.leader(topic, 0)
        stage.random_phase()
        since, ordered = stage.mark(), Moment.now()
        (cluster.kill if how == "killed" else cluster.stop_node)(leader)
        strike = Strike(f"leader of {of} {how}", f"broker {leader}", ordered, Moment.now())
        fault = stage.new_round(number, strike, [], set(range(stage.settings.partitions)))
        fault.whose = "the broker's"
        deadline = time.monotonic() + 60.0
        while cluster.leader(topic, 0) in (leader, -1):
            if time.monotonic() > deadline:
                raise UnavailableError(f"{topic} had no new leader within 60 s")
            time.sleep(0.02)
        led_ms = (time.monotonic() - ordered.monotonic_s) * 1000
        fault.notes["new_leader_ms"] = round(led_ms, 1)
        stage.time_output(fault, strike, 90.0, curved=False)
        fault.notes["output_after_leader_ms"] = round(max(fault.takeover_ms.values(), default=0.0) - led_ms, 1)
        time.sleep(2 * _CALM_S)
        _no_verdicts(stage, fault, since)
        cluster.start_node(leader)
        cluster.await_in_sync()
        return fault

    return play


def soak(stage: Stage, number: int) -> Round:
    """Row 13: nothing but the level's own load, for half a minute; counts verdicts."""
    stage.troupe.await_ripe(len(stage.troupe.actors))
    since, ordered = stage.mark(), Moment.now()
    time.sleep(_SOAK_S)
    strike = Strike(f"nothing for {_SOAK_S:g} s", "", ordered, ordered)
    fault = stage.new_round(number, strike, [], set())
    _no_verdicts(stage, fault, since, is_saturated=stage.settings.level.has_hogs)
    return fault


def half_a_core(stage: Stage, number: int) -> Round:
    """Row 13: all processes of one node together get half a core."""
    victim = _oldest(stage)
    since, ordered = stage.mark(), Moment.now()
    stage.troupe.note_struck(victim)
    with CpuQuota(cores=0.5) as quota:
        held = quota.hold(process.pid for process in node_processes(victim.pid))
        time.sleep(_SOAK_S / 3)
    strike = Strike(held.fault, victim.name, ordered, held.done)
    fault = stage.new_round(number, strike, [victim], stage.troupe.shards_of(victim))
    _no_verdicts(stage, fault, since, is_saturated=True)
    time.sleep(_CALM_S)
    return fault


def step_clock(stage: Stage, number: int) -> Round:
    """Row 14: one node's wall clock goes an hour forward, or back."""
    victim, clock = _oldest_with(stage, lambda actor: actor.clock)
    stage.random_phase()
    since = stage.mark()
    strike = clock.step(_HOUR_S if number % 2 == 0 else -_HOUR_S)
    fault = stage.new_round(number, strike, [victim], stage.troupe.shards_of(victim))
    stage.time_output(fault, strike)
    time.sleep(_CALM_S)
    _no_verdicts(stage, fault, since)
    return fault
