"""`millstream lag` and `millstream reset` on a real Kafka, with real transactional ids."""

from __future__ import annotations

import asyncio
import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from outside import Outside
from test_observing import send_in_transactions

from millstream.processor import Pipeline
from millstream.processor.cli import main

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


def copying(outside: Outside, source: str, target: str, name: str, **settings: Any) -> Pipeline:
    pipeline = Pipeline(name, shards=2, **settings)
    pipeline.read(source).write(target)
    return pipeline


async def caught_up(outside: Outside, pipeline: Pipeline) -> int:
    """Run to the end of what is there; how many records that were."""
    result = await pipeline.run(brokers=outside.bootstrap, until="caught-up", timeout_s=60)
    return result.counts.records_in


async def command(*arguments: str) -> int:
    return await asyncio.to_thread(main, list(arguments))


async def lag(outside: Outside, name: str, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    capsys.readouterr()
    assert await command("lag", name, "--json", f"--brokers={outside.bootstrap}") == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    return found


async def test_lag_counts_what_waits_and_reaches_zero_behind_markers(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, name = outside.topic("in"), outside.topic("out"), outside.unique("p")
    outside.send(source, [(None, b"1"), (None, b"2")], partition=1)
    pipeline = copying(outside, source, target, name)
    assert await caught_up(outside, pipeline) == 2
    await asyncio.to_thread(send_in_transactions, outside, source, 4)
    hour_ago_ms = int(datetime.now(UTC).timestamp() * 1000) - 3_600_000
    outside.send(source, [(None, b"3")] * 5, partition=2, timestamp_ms=hour_ago_ms)
    behind = await lag(outside, name, capsys)
    rows = {row["partition"]: row for row in behind["partitions"]}
    assert behind["lag"] == sum(row["lag"] for row in rows.values()) >= 25
    assert {row["state"] for row in rows.values()} == {"ok"}
    assert rows[1]["committed"] == 2
    assert all(row["age_s"] is None or 0 <= row["age_s"] < 7200 for row in rows.values())
    await caught_up(outside, pipeline)
    done = await lag(outside, name, capsys)
    assert done["lag"] == 0
    assert all(row["committed"] == row["end"] and row["age_s"] is None for row in done["partitions"])


async def test_the_oldest_waiting_record_tells_its_age_and_the_table_says_the_same(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, name = outside.topic("in", partitions=1), outside.topic("out"), outside.unique("p")
    outside.send(source, [(None, b"1")])
    await caught_up(outside, copying(outside, source, target, name))
    hour_ago_ms = int(datetime.now(UTC).timestamp() * 1000) - 3_600_000
    outside.send(source, [(None, b"2")] * 3, timestamp_ms=hour_ago_ms)
    (row,) = (await lag(outside, name, capsys))["partitions"]
    assert (row["committed"], row["end"], row["lag"]) == (1, 4, 3)
    assert row["age_s"] == pytest.approx(3600, abs=60)
    assert await command("lag", name, f"--brokers={outside.bootstrap}") == 0
    assert "3 behind" in " ".join(capsys.readouterr().out.split())


async def test_a_stopped_pipeline_is_reset_and_does_exactly_that_again(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, name = outside.topic("in", partitions=2), outside.topic("out"), outside.unique("p")
    brokers = f"--brokers={outside.bootstrap}"
    now = datetime.now(UTC)
    early_ms, late_ms = (int((now - timedelta(hours=hours)).timestamp() * 1000) for hours in (3, 1))
    for partition in range(2):
        outside.send(source, [(None, b"early")] * 3, partition=partition, timestamp_ms=early_ms)
        outside.send(source, [(None, b"late")] * 2, partition=partition, timestamp_ms=late_ms)
    pipeline = copying(outside, source, target, name)
    assert await caught_up(outside, pipeline) == 10

    assert await command("reset", name, "--to=earliest", "--dry-run", brokers) == 0
    assert "would be reset, 2 partitions" in " ".join(capsys.readouterr().out.split())
    assert await caught_up(outside, pipeline) == 0, "a dry run does nothing"

    assert await command("reset", name, f"--to={now - timedelta(hours=2)}", brokers) == 0
    assert await caught_up(outside, pipeline) == 4
    assert await command("reset", name, f"--to={source}:0=1", "--force", brokers) == 0
    assert await caught_up(outside, pipeline) == 4
    assert await command("reset", name, "--to=earliest", "--topic", source, "--force", brokers) == 0
    assert await command("reset", name, "--to=latest", "--force", brokers) == 0
    assert await caught_up(outside, pipeline) == 0
    assert [row["state"] for row in (await lag(outside, name, capsys))["partitions"]] == ["ok", "ok"]


@pytest.mark.parametrize("is_busy", [False, True])
async def test_a_reset_of_a_running_pipeline_is_refused_and_does_no_harm(
    outside: Outside, capsys: pytest.CaptureFixture[str], is_busy: bool
) -> None:
    source, target, name = outside.topic("in"), outside.topic("out"), outside.unique("p")
    await asyncio.to_thread(outside.load, source, 300)
    pipeline = copying(outside, source, target, name)
    events = 600 if is_busy else 300
    async with asyncio.TaskGroup() as tasks:
        running = tasks.create_task(pipeline.run(brokers=outside.bootstrap, timeout_s=12))
        await asyncio.sleep(2)
        resetting = tasks.create_task(command("reset", name, "--to=earliest", f"--brokers={outside.bootstrap}"))
        if is_busy:
            for part in range(6):
                await asyncio.to_thread(outside.load, source, 50, first_id=300 + 50 * part)
                await asyncio.sleep(0.1)
        assert await resetting == 1
    assert "the pipeline runs" in capsys.readouterr().err
    assert running.result().counts.records_in == events
    verdict = outside.judge(source, target, group=name)
    assert verdict.is_clean, verdict.as_json()


async def test_mistakes_in_what_is_asked_for_are_told_together_and_nothing_is_moved(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    source, target, name = outside.topic("in", partitions=2), outside.topic("out"), outside.unique("p")
    outside.send(source, [(None, b"1")], partition=0)
    brokers = f"--brokers={outside.bootstrap}"
    await caught_up(outside, copying(outside, source, target, name))
    capsys.readouterr()
    assert await command("reset", name, f"--to={source}:0=9", f"--to={source}:7=0", brokers) == 2
    message = capsys.readouterr().err
    assert f"{source}-0 holds offsets 0 to 1, and not 9" in message
    assert f"{source}-7 does not exist" in message
    assert await command("reset", name, "--to=earliest", f"--topic={target}", brokers) == 2
    assert f"does not read topic {target!r}; it has read {source}" in capsys.readouterr().err
    assert await command("lag", outside.unique("ghost"), brokers) == 2
    assert "there is no pipeline" in capsys.readouterr().err
