"""The real engine on a log in memory, in a worker process, with a stage that never comes back from one record.

Each incarnation begins anew with the same records, and appends what it has committed to a journal.
"""

from __future__ import annotations

import asyncio
import json
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from memory_broker import MemoryBroker
from memory_log import MemoryLog

from millstream.processor import Pipeline
from millstream.processor.columns import OutputRecords
from millstream.processor.host import Host, RunOptions

PARTITIONS = 2
COUNT = 300
POISON = b"1-217"
TIMEOUT_S = 0.8


def values(partition: int) -> list[bytes]:
    return [f"{partition}-{number}".encode() for number in range(COUNT)]


def asleep(value: bytes) -> bytes:
    if value == POISON:
        Path(os.environ["HANGING_HOST"], "hangs").touch()
        time.sleep(3600)
    return value


def pausing(value: bytes) -> bytes:
    if value == POISON:
        Path(os.environ["HANGING_HOST"], "hangs").touch()
        time.sleep(TIMEOUT_S / 4)
    return value


def busy(value: bytes) -> bytes:
    while value == POISON:
        pass
    return value


async def waiting(value: bytes) -> bytes:
    if value == POISON:
        await asyncio.Event().wait()
    return value


async def blocking(value: bytes) -> bytes:
    await asyncio.sleep(0)
    if value == POISON:
        time.sleep(3600)  # noqa: ASYNC251 - what users should not do is the point
    return value


def in_columns(columns: Any) -> dict[str, Any]:
    if POISON in columns.value.to_list():
        time.sleep(3600)
    return {"value": columns.value}


FUNCTIONS: dict[str, Callable[..., Any]] = {
    function.__name__: function for function in (asleep, pausing, busy, waiting, blocking, in_columns)
}


def make(directory: str, function: str, shards: int, on_error: Any = "dead-letter") -> Host:
    os.environ["HANGING_HOST"] = directory
    broker = MemoryBroker()
    broker.create("in", PARTITIONS)
    broker.create("out", PARTITIONS)
    for partition in range(PARTITIONS):
        broker.send("in", partition, values(partition))
    pipeline = Pipeline("p", shards=shards, on_error=on_error, stage_timeout_s=TIMEOUT_S, missing_topics="create")
    stream = pipeline.read("in")
    if function == "in_columns":
        stream.columns(in_columns, name="culprit").write("out")
    else:
        stream.map(FUNCTIONS[function], name="culprit").write("out")

    def on_outputs(outputs: Sequence[OutputRecords]) -> None:
        with (Path(directory) / "outputs").open("a") as journal:
            for written in outputs:
                texts = [(value or b"").decode() for value in written.value.to_list()]
                journal.write(json.dumps([os.getpid(), written.topic, texts]) + "\n")

    log = MemoryLog(broker, "p", piece_records=120)
    return Host(pipeline.build(), log, RunOptions(until_caught_up=True, on_outputs=on_outputs))
