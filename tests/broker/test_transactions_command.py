"""`millstream transactions`: what a pipeline has left open is seen, and is ended when nobody runs the pipeline."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import confluent_kafka
import pytest
from outside import Outside

from millstream.connectors.kafka.membership_log import KafkaMembershipLog
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.processor import Pipeline
from millstream.processor.cli import main

pytestmark = [pytest.mark.broker, pytest.mark.timeout(120)]


def pipeline(source: str, target: str, name: str) -> Pipeline:
    made = Pipeline(name, shards=2)
    made.read(source).write(target)
    return made


async def stopped_pipeline(outside: Outside) -> tuple[str, str, str]:
    """Name and topics of a pipeline that has committed something in each shard, and ended."""
    source, target, name = outside.topic("in", partitions=2), outside.topic("out", partitions=1), outside.unique("p")
    for partition in range(2):
        outside.send(source, [(None, b"%d" % partition)], partition=partition)
    made = pipeline(source, target, name)
    assert (await made.run(brokers=outside.bootstrap, until="caught-up", timeout_s=60)).counts.records_in == 2
    return name, source, target


async def transactions(
    outside: Outside, capsys: pytest.CaptureFixture[str], *arguments: str, code: int = 0
) -> dict[str, Any]:
    """The command's answer as JSON, or its message."""
    capsys.readouterr()
    line = ["transactions", *arguments, "--json", f"--brokers={outside.bootstrap}"]
    assert await asyncio.to_thread(main, line) == code
    printed = capsys.readouterr()
    return json.loads(printed.out) if code == 0 else {"message": " ".join(printed.err.split())}


async def left_open(outside: Outside, transactional_id: str, topic: str) -> confluent_kafka.Producer:
    """An owner that has fenced the shard, written something, and says nothing more."""
    producer = confluent_kafka.Producer({**outside.kafka, "transactional.id": transactional_id})
    await asyncio.to_thread(producer.init_transactions, 20)
    producer.begin_transaction()
    producer.produce(topic, b"never committed")
    assert await asyncio.to_thread(producer.flush, 20) == 0
    return producer


def by_shard(found: dict[str, Any]) -> dict[int, dict[str, Any]]:
    return {row["shard"]: row for row in found["transactions"]}


async def test_a_stopped_pipeline_has_nothing_open(outside: Outside, capsys: pytest.CaptureFixture[str]) -> None:
    name, *_ = await stopped_pipeline(outside)
    found = await transactions(outside, capsys, name)
    assert (found["pipeline"], found["fenced"]) == (name, [])
    rows = by_shard(found)
    assert [row["transactional_id"] for row in rows.values()] == [f"{name}.0", f"{name}.1"]
    assert not any(row["open"] or row["partitions"] or row["age_s"] for row in rows.values())
    assert all(row["producer_id"] >= 0 for row in rows.values())
    assert await asyncio.to_thread(main, ["transactions", name, f"--brokers={outside.bootstrap}"]) == 0
    assert f"{name}: 0 open of 2" in " ".join(capsys.readouterr().out.split())


async def test_what_is_left_open_is_shown_and_fencing_ends_it_alone(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, target = await stopped_pipeline(outside)
    owner = await left_open(outside, f"{name}.1", target)
    before = by_shard(await transactions(outside, capsys, name))
    assert (before[1]["state"], before[1]["open"]) == ("Ongoing", True)
    assert before[1]["partitions"] == [{"topic": target, "partition": 0}]
    assert 0 <= before[1]["age_s"] < 600
    found = await transactions(outside, capsys, name, "--fence")
    after = by_shard(found)
    assert found["fenced"] == [1]
    assert not after[1]["open"]
    assert (after[1]["producer_id"], after[1]["epoch"]) != (before[1]["producer_id"], before[1]["epoch"])
    assert after[0] == before[0]
    assert sorted(message.value or b"" for message in await asyncio.to_thread(outside.read, target)) == [b"0", b"1"]
    del owner  # it had to live until here


async def test_a_shard_that_is_named_is_fenced_whatever_it_does_and_wrong_ones_are_all_told(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    name, source, target = await stopped_pipeline(outside)
    before = by_shard(await transactions(outside, capsys, name))
    found = await transactions(outside, capsys, name, "--fence", "0", "--force")
    after = by_shard(found)
    assert found["fenced"] == [0]
    assert after[0] != before[0]
    assert after[1] == before[1]
    wrong = await transactions(outside, capsys, name, "--fence", "2", "0", "7", code=2)
    assert "no shard 2; its shards are 0 to 1" in wrong["message"]
    assert "no shard 7" in wrong["message"]
    nobody = await transactions(outside, capsys, outside.unique("nobody"), code=2)
    assert "nobody" in nobody["message"]
    assert "--fence" in (await transactions(outside, capsys, name, "--force", code=2))["message"]
    # The pipeline takes its shards back at its next start.
    outside.send(source, [(None, b"more")], partition=0)
    again = await pipeline(source, target, name).run(brokers=outside.bootstrap, until="caught-up", timeout_s=60)
    assert again.counts.records_in == 1


async def test_a_pipeline_that_beats_is_not_fenced_unless_told_to(
    outside: Outside, capsys: pytest.CaptureFixture[str]
) -> None:
    name, _, target = await stopped_pipeline(outside)
    kafka = KafkaSettings(brokers=(outside.bootstrap,))
    log = KafkaMembershipLog(kafka, ledger=f"{name}.ledger", beats=f"{name}.beats")
    await log.connect()

    async def beat() -> None:
        while True:
            await log.send_beat(b"here")
            await asyncio.sleep(0.05)

    beating = asyncio.create_task(beat())
    owner = await left_open(outside, f"{name}.0", target)
    refused = await transactions(outside, capsys, name, "--fence", code=1)
    assert "beats of its nodes came" in refused["message"]
    assert by_shard(await transactions(outside, capsys, name))[0]["open"]
    assert (await transactions(outside, capsys, name, "--fence", "--force"))["fenced"] == [0]
    beating.cancel()
    log.close()
    del owner  # it had to live until here


async def test_an_id_that_expired_is_left_out(outside: Outside, capsys: pytest.CaptureFixture[str]) -> None:
    """As with a pipeline that is at least once: the ledger is there, and no shard was ever fenced."""
    name = outside.unique("p")
    outside.create(f"{name}.ledger", 1)
    outside.send(f"{name}.ledger", [(None, b'{"type":"created","shards":3,"version":1}')])
    assert (await transactions(outside, capsys, name))["transactions"] == []
    assert (await transactions(outside, capsys, name, "--fence"))["fenced"] == []
