"""The token of an ownership reaches functions, and grows with the shard's owners."""

from __future__ import annotations

import asyncio

import pytest
from engine_bench import numbered
from memory_broker import MemoryBroker
from memory_log import MemoryLog

from millstream.processor import Pipeline, Record, ownership_token
from millstream.processor.control import TO_WORKER, Assign, frame
from millstream.processor.errors import UserError
from millstream.processor.host import Host, RunOptions
from millstream.processor.ledger import CreatedRecord, DeadRecord, JoinRecord, LeaveRecord, LedgerRecord, WorkerUpRecord
from millstream.processor.membership import Membership, apply


def test_outside_of_a_function_there_is_no_token() -> None:
    with pytest.raises(UserError, match="while a function of a running pipeline"):
        ownership_token()


def test_in_a_test_the_token_is_0_and_is_gone_afterwards() -> None:
    pipeline = Pipeline("p")
    pipeline.read("in").map(lambda value: value + b"%d" % ownership_token()).write("out")
    assert [output.value for output in pipeline.test([b"x"]).outputs["out"]] == [b"x0"]
    with pytest.raises(UserError):
        ownership_token()


@pytest.mark.parametrize("is_async", [False, True])
async def test_a_functions_token_is_that_of_its_shard(is_async: bool) -> None:
    broker = MemoryBroker()
    for topic in ("in", "out"):
        broker.create(topic, 2)
    for partition in range(2):
        broker.send("in", partition, numbered(5))
    seen: set[tuple[int, int]] = set()

    def note_now(value: bytes, record: Record) -> bytes:
        seen.add((record.partition, ownership_token()))
        return value

    async def note_later(value: bytes, record: Record) -> bytes:
        await asyncio.sleep(0)
        return note_now(value, record)

    pipeline = Pipeline("p", shards=2)
    stream = pipeline.read("in")
    if is_async:
        stream.map(note_later, concurrency=3).write("out")
    else:
        stream.map(note_now).write("out")
    host = Host(pipeline.build(), MemoryLog(broker, "p"), RunOptions(until_caught_up=True))
    await host.prepare()
    host.assign(frozenset({0, 1}), (), {0: 17, 1: 23})
    await host.serve(lambda _: None)
    assert seen == {(0, 17), (1, 23)}


def test_tokens_travel_to_worker_processes() -> None:
    message = Assign([0, 3], [], {0: 17, 3: 1 << 60})
    assert TO_WORKER.decode(frame(message)[5:]) == message


def test_each_owner_of_a_shard_has_a_larger_token_than_the_one_before() -> None:
    records: list[LedgerRecord] = [CreatedRecord(2)]
    for node in ("a", "b", "c"):
        records += [JoinRecord(node, node, "", [], 0), WorkerUpRecord(node, 0, 1)]
    records += [DeadRecord("a", "b", 400.0, 300.0, 9), LeaveRecord("b"), LeaveRecord("c")]
    records += [JoinRecord("d", "d", "", [], 0), WorkerUpRecord("d", 0, 1)]
    membership, owners = Membership(), {0: [], 1: []}  # type: ignore[var-annotated]
    for offset, record in enumerate(records):
        membership = apply(membership, offset, record)
        for shard, by in membership.holders.items():
            if (by.node, membership.since[shard]) not in owners[shard]:
                owners[shard].append((by.node, membership.since[shard]))
    for owned in owners.values():
        tokens = [token for _, token in owned]
        assert len(tokens) >= 3
        assert tokens == sorted(set(tokens))
