"""The rows of the fault matrix as cases: what each is called, what it needs, and what plays it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from millstream.loadgen import chaos_deaths as deaths
from millstream.loadgen import chaos_moves as moves
from millstream.loadgen import chaos_surroundings as surroundings
from millstream.loadgen.chaos_stage import Round, Stage
from millstream.loadgen.networks import Cut


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One row, or a part of one. `proxied`, `networked` and `clocked` say how many of the nodes are.

    After a case that `is_replayed`, all input is processed once more. `rounds_max` bounds what a case of which each
    round takes long is asked for; `targets_ms` are for the time until output, p50 and p99.
    """

    row: str
    name: str
    play: Callable[[Stage, int], Round]
    nodes: int = 3
    workers: int = 1
    proxied: int = 0
    networked: int = 0
    clocked: int = 0
    is_clustered: bool = False
    is_replayed: bool = False
    rounds_max: int = 1000
    rate: float | None = None
    environ: Mapping[str, str] = field(default_factory=dict)
    targets_ms: tuple[float, float] | None = None


_STAGE_TIMEOUT = {"MILLSTREAM_CHAOS_STAGE_TIMEOUT_S": "1"}
_NODE_TARGETS = (330.0, 450.0)

CASES: tuple[Case, ...] = (
    Case(row="1", name="worker-killed", play=deaths.kill_worker, nodes=2, workers=2, targets_ms=(150.0, 150.0)),
    Case(row="1", name="node-killed", play=deaths.kill_node, nodes=4, targets_ms=_NODE_TARGETS),
    Case(row="1", name="node-killed-in-commit", play=deaths.kill_in_commit, proxied=1, targets_ms=_NODE_TARGETS),
    Case(row="2", name="frozen-0.15s", play=deaths.freeze(0.15)),
    Case(row="2", name="frozen-0.6s", play=deaths.freeze(0.6), targets_ms=_NODE_TARGETS),
    Case(row="2", name="frozen-5s", play=deaths.freeze(5.0), targets_ms=_NODE_TARGETS),
    Case(row="2", name="frozen-90s", play=deaths.freeze(90.0), rounds_max=1, targets_ms=_NODE_TARGETS),
    Case(row="moves", name="scale-out-and-in", play=moves.scale_out, nodes=2, rate=2000.0, targets_ms=(100.0, 100.0)),
    Case(row="moves", name="rolling-restart", play=moves.rolling_restart, rate=2000.0, targets_ms=(100.0, 100.0)),
    Case(row="11", name="restarted-at-once", play=deaths.restart_at_once, targets_ms=_NODE_TARGETS),
    Case(row="8", name="two-die-together", play=deaths.kill_two, nodes=4),
    Case(row="8", name="successor-dies", play=deaths.kill_successor, nodes=4),
    Case(row="9", name="cold-start", play=deaths.kill_everything, rounds_max=5),
    Case(row="10", name="two-verdicts", play=deaths.two_verdicts, nodes=4, proxied=1, rounds_max=2),
    Case(row="3", name="detector-frozen-0.2s", play=deaths.freeze_detector(0.2)),
    Case(row="3", name="detector-frozen-2s", play=deaths.freeze_detector(2.0)),
    Case(row="4", name="user-code-blocks-0.3s", play=surroundings.block("sleep", 0.3), nodes=2, environ=_STAGE_TIMEOUT),
    Case(row="4", name="user-code-blocks-3s", play=surroundings.block("sleep", 3.0), nodes=2, environ=_STAGE_TIMEOUT),
    Case(row="4", name="user-code-holds-3s", play=surroundings.block("hold", 3.0), nodes=2, environ=_STAGE_TIMEOUT),
    Case(row="5", name="cut-both-ways", play=surroundings.cut_off(Cut.BOTH), networked=1),
    Case(row="5", name="cut-outwards", play=surroundings.cut_off(Cut.OUT), networked=1),
    Case(row="5", name="cut-inwards", play=surroundings.cut_off(Cut.IN), networked=1),
    Case(row="13", name="hogs", play=surroundings.soak),
    Case(row="13", name="half-a-core", play=surroundings.half_a_core),
    Case(row="12", name="broker-killed", play=surroundings.kill_broker, rounds_max=5),
    *(
        Case(
            row="12",
            name=f"leader-of-{of}-{how}",
            play=surroundings.lose_leader(of, how),
            is_clustered=True,
            rounds_max=3,
        )
        for of, how in (("beats", "killed"), ("ledger", "killed"), ("output", "killed"), ("output", "stopped"))
    ),
    Case(row="15", name="one-joins-one-dies", play=moves.join_while_one_dies, targets_ms=_NODE_TARGETS),
    Case(row="7", name="slow-coordinator", play=surroundings.slow_coordinator, proxied=1),
    Case(row="6", name="cut-from-beats", play=surroundings.cut_topic("beats"), proxied=1),
    Case(row="6", name="cut-from-output", play=surroundings.cut_topic("output"), proxied=1),
    Case(row="14", name="clock-stepped", play=surroundings.step_clock, clocked=1),
    Case(row="16", name="replayed", play=deaths.kill_node, is_replayed=True, rounds_max=1),
)
ROWS = tuple(dict.fromkeys(case.row for case in CASES))
