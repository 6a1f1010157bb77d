"""A node with real processes whose stage hangs at one record: the worker is replaced, the record is found and given up,
and all others come out."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import re
import signal
from collections import defaultdict
from pathlib import Path

import hanging_host
import pytest
from test_agent import Node, ended, eventually, node, workers_find_the_fake_host

from millstream.processor.actions import Outcome
from millstream.processor.restarts import RestartPolicy

__all__ = ["workers_find_the_fake_host"]

QUICKLY = RestartPolicy(delay_first_s=0.01, delay_max_s=0.01)
GOOD = sorted(
    value.decode()
    for partition in range(hanging_host.PARTITIONS)
    for value in hanging_host.values(partition)
    if value != hanging_host.POISON
)


def written(under_test: Node) -> dict[str, list[str]]:
    """What was committed, by topic; of each input partition by the last process that ran its shard."""
    by_process: dict[str, dict[int, list[tuple[str, str]]]] = defaultdict(dict)
    for line in (under_test.directory / "outputs").read_text().splitlines():
        pid, topic, values = json.loads(line)
        for value in values:
            by_process[value[0]].setdefault(pid, []).append((topic, value))
    by_topic: dict[str, list[str]] = defaultdict(list)
    for processes in by_process.values():
        for topic, value in list(processes.values())[-1]:
            by_topic[topic].append(value)
    return by_topic


@pytest.mark.parametrize("function", ["asleep", "busy", "waiting", "blocking", "in_columns"])
async def test_the_record_at_which_a_stage_hangs_is_dead_lettered_and_all_others_come_out_once(
    tmp_path: Path, function: str, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    caplog.set_level(logging.INFO)
    arguments = {"function": function, "shards": 1 if function == "asleep" else 2}
    async with node(tmp_path, workers=1, factory="hanging_host:make", restarts=QUICKLY, **arguments) as under_test:
        assert await ended(under_test) == Outcome(0)
    by_topic = written(under_test)
    assert sorted(by_topic["out"]) == GOOD
    assert by_topic["p.dead-letters"] == [hanging_host.POISON.decode()]
    for partition in range(hanging_host.PARTITIONS):
        numbers = [int(value[2:]) for value in by_topic["out"] if value.startswith(f"{partition}-")]
        assert numbers == sorted(numbers), "the order of each partition is kept"
    said = [record.getMessage() for record in caplog.records if "worker.killed" in record.getMessage()]
    assert "stage 'culprit' did not come back within 0.8 s" in said[0]
    assert "in-1@217 (attempt 3)" in said[-1], "attempts count from the first time that its batch hung"
    if function != "waiting":
        assert re.search(rf'hanging_host.py", line \d+ in {function}$', capfd.readouterr().err, re.MULTILINE), "where"
    assert b'millstream_stalled_stages_total{stage="culprit"}' in under_test.agent._telemetry.metrics()


async def test_a_stage_that_hangs_stops_the_pipeline_where_its_policy_is_to_stop(tmp_path: Path) -> None:
    arguments = {"function": "asleep", "shards": 2, "on_error": "stop"}
    async with node(tmp_path, workers=1, factory="hanging_host:make", restarts=QUICKLY, **arguments) as under_test:
        outcome = await ended(under_test)
    assert outcome.exit_code == 1
    assert outcome.message is not None
    assert "stage 'culprit': failed on in-1@217 after 3 attempts: StalledError" in outcome.message


async def test_a_stage_that_hangs_while_the_node_drains_is_named(tmp_path: Path) -> None:
    arguments = {"function": "asleep", "shards": 2}
    async with node(tmp_path, workers=1, factory="hanging_host:make", restarts=QUICKLY, **arguments) as under_test:
        await eventually((tmp_path / "hangs").exists, "a stage hangs")
        under_test.agent.request_stop()
        outcome = await ended(under_test)
    assert outcome.exit_code == 1
    assert "stage 'culprit' did not come back" in (outcome.message or "")


async def test_a_worker_that_was_stopped_for_a_while_is_not_blamed_for_that_time(tmp_path: Path) -> None:
    arguments = {"function": "pausing", "shards": 2}
    async with node(tmp_path, workers=1, factory="hanging_host:make", restarts=QUICKLY, **arguments) as under_test:
        await eventually((tmp_path / "hangs").exists, "a stage runs")
        os.kill(under_test.pids()[0], signal.SIGSTOP)
        await asyncio.sleep(3 * hanging_host.TIMEOUT_S)
        os.kill(under_test.pids()[0], signal.SIGCONT)
        assert await ended(under_test) == Outcome(0)
        assert under_test.worker(0)["restarts"] == 0
