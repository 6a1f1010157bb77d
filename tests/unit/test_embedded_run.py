"""`pipeline.run` refuses what makes no sense before it connects to anything."""

from __future__ import annotations

from typing import Any

import pytest
from engine_bench import numbered
from memory_broker import MemoryBroker
from memory_log import MemoryLog
from memory_membership import MemoryMembership

from millstream.processor import Pipeline, wiring
from millstream.processor.built import BuiltPipeline
from millstream.processor.errors import OutcomeUnknownError, SettingsError
from millstream.processor.host import Host, RunOptions
from millstream.processor.ledger import CreatedRecord, encode


def pipeline() -> Pipeline:
    made = Pipeline("embedded")
    made.read("in").write("out")
    return made


@pytest.mark.parametrize(
    ("argument", "value"),
    [
        ("until", "the end"),
        ("events", 0),
        ("events", -5),
        ("timeout_s", 0),
        ("timeout_s", -0.5),
        ("node_name", "a/b"),
        ("node_name", ""),
        ("zone", "a zone"),
        ("zone", 7),
        ("labels", "one-text"),
    ],
)
async def test_a_senseless_argument_is_refused_and_named(argument: str, value: object) -> None:
    arguments: dict[str, Any] = {"brokers": "127.0.0.1:1", argument: value}
    with pytest.raises(SettingsError, match=f"{argument}={value!r}"):
        await pipeline().run(**arguments)


async def test_all_mistakes_are_told_at_once() -> None:
    with pytest.raises(SettingsError) as caught:
        await pipeline().run(brokers="127.0.0.1:1", until="never", events=0, timeout_s=0)  # type: ignore[arg-type]
    assert len(caught.value.mistakes) == 3


async def test_the_time_is_a_bound_for_waiting_for_a_broker_too() -> None:
    result = await pipeline().run(brokers="127.0.0.1:1", timeout_s=0.2, collect=True)
    assert result.counts.records_in == 0
    assert result.outputs == {"out": []}


async def test_a_restart_of_a_shard_is_logged_since_no_node_is_there_to_do_it(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    broker = MemoryBroker()
    for topic in ("in", "out"):
        broker.create(topic)
    broker.send("in", 0, numbered(10))
    log = MemoryLog(broker, "embedded")
    log.trouble.fail("end", OutcomeUnknownError("nobody answered"), after=True)

    def in_memory(built: BuiltPipeline, _kafka: object, options: RunOptions, _offload: object) -> Host:
        return Host(built, log, options)

    monkeypatch.setattr(wiring, "host", in_memory)
    membership = MemoryMembership()
    membership.store([encode(CreatedRecord(shards=1))])
    monkeypatch.setattr(wiring, "membership_log_in_thread", lambda *_: membership.log)
    result = await pipeline().run(brokers="127.0.0.1:1", until="caught-up", collect=True)
    assert [output.value for output in result.outputs["out"]] == numbered(10)
    restarted = 'shard.restarted shard=0 reason="OutcomeUnknownError: nobody answered"'
    assert restarted in [record.getMessage() for record in caplog.records]
