"""A handful of rows of the fault matrix on real nodes, and the proof that this would not go unnoticed otherwise."""

from __future__ import annotations

import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from millstream.connectors.kafka.pytest_broker import Broker
from millstream.loadgen import chaos_deaths as deaths
from millstream.loadgen import chaos_moves as moves
from millstream.loadgen.chaos_case import CaseResult, play_case
from millstream.loadgen.chaos_cases import Case
from millstream.loadgen.chaos_stage import Level, Round, Stage
from millstream.loadgen.chaos_troupe import APP

pytestmark = [pytest.mark.broker, pytest.mark.timeout(300)]

# Far from what is promised, and far below what Kafka's own group sessions take: machines that run tests are busy.
TAKEOVER_MS_USUAL = 10_000
# A newcomer's silence is judged late, and waiting until it is none would take longer than all of this.
RIPE_S = 1.0
SHORT = (
    deaths.kill_worker,
    deaths.freeze_until_dead,
    deaths.restart_at_once,
    deaths.kill_node,
    moves.scale_out,
)
MUTATION = """
import dataclasses
from millstream.processor import keeper

really_begin, remembered = keeper.begin, {}

async def begin_where_it_once_was(log, shard_log, permit, partitions, *others):
    begun = await really_begin(log, shard_log, permit, partitions, *others)
    positions = {partition: remembered.setdefault(partition, at) for partition, at in begun.positions.items()}
    return dataclasses.replace(begun, positions=positions)

keeper.begin = begin_where_it_once_was
from millstream.loadgen.chaos_app import pipeline
"""

Play = Callable[[Stage, int], Round]


def play(name: str, faults: Sequence[Play], broker: Broker, logs: Path, app: str = APP) -> CaseResult:
    def one(stage: Stage, number: int) -> Round:
        return faults[number](stage, number)

    seed = random.randrange(1 << 31)
    print(f"seed {seed}")
    case = Case(row="short", name=name, play=one)
    return play_case(case, Level.IDLE, len(faults), broker, seed, print, logs=logs, app=app, ripe_s=RIPE_S)


def test_workers_and_nodes_die_freeze_and_come_back_and_every_event_has_its_effect_once(
    broker: Broker, tmp_path: Path
) -> None:
    result = play("short", SHORT, broker, tmp_path)
    assert result.failure is None
    assert result.verdict is not None
    assert (result.verdict.balance.lost, result.verdict.balance.doubled) == (0, 0)
    assert result.verdict.is_clean, result.verdict.sentences()
    assert result.complaints == []
    assert len(result.rounds) == len(SHORT)
    takeovers = [time_ms for one in result.rounds for time_ms in one.takeover_ms.values()]
    assert len(takeovers) >= len(SHORT) - 1
    assert statistics.median(takeovers) < TAKEOVER_MS_USUAL


def test_owners_that_go_on_where_they_once_were_are_found_out(broker: Broker, tmp_path: Path) -> None:
    app = tmp_path / "mutant.py"
    app.write_text(MUTATION)
    result = play("mutant", [deaths.freeze_until_dead] * 2, broker, tmp_path, app=f"{app}:pipeline")
    assert not result.is_clean
    assert result.verdict is None or result.verdict.balance.doubled > 0
