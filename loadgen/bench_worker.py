"""A process that is one worker with all shards of a pipeline, as the benchmark measures it.

It is what a worker of `millstream run` is, in the same event loop and on the same log, without an agent above it.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable
from typing import Any, cast

from millstream.connectors.kafka.settings import KafkaSettings
from millstream.gpu_offload.offload_settings import OffloadSettings
from millstream.loadgen.bench_orders import (
    Began,
    Finished,
    Order,
    Passage,
    Stopwatch,
    answer,
    on_stdin_end,
    receive_order,
)
from millstream.loadgen.bench_workloads import Work, pipeline_for
from millstream.processor.event_loop import new_event_loop
from millstream.processor.host import Host, RunOptions
from millstream.processor.log import Log, ShardLog
from millstream.processor.wiring import kafka_log, offloading

_DRAIN_S = 20.0


class _TimedShardLog:
    """A shard's log that notes when reading began and when the last commit was done."""

    def __init__(self, log: ShardLog, began: Callable[[], None], stopwatch: Stopwatch) -> None:
        self._log = log
        self._began = began
        self._stopwatch = stopwatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def open(self, *arguments: Any) -> Any:
        self._began()
        return self._log.open(*arguments)

    async def commit(self, *arguments: Any) -> Any:
        permit = await self._log.commit(*arguments)
        self._stopwatch.lap()
        return permit


class _TimedLog:
    """A worker's log that times its shards."""

    def __init__(self, log: Log, began: Callable[[], None], stopwatch: Stopwatch) -> None:
        self._log = log
        self._began = began
        self._stopwatch = stopwatch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._log, name)

    def shard(self, shard: int) -> ShardLog:
        return cast("ShardLog", _TimedShardLog(self._log.shard(shard), self._began, self._stopwatch))


async def _pass(
    kafka: KafkaSettings, work: Work, passage: Passage, began: Callable[[], None], stop: asyncio.Event
) -> Finished:
    """Run a pipeline until it is caught up, or, where the passage has no end, until `stop`."""
    pipeline = pipeline_for(work, passage.name, passage.source, passage.target).build()
    stopwatch = Stopwatch()

    def begin() -> None:
        if not stopwatch.is_running:
            stopwatch.start()
            began()

    log = cast("Log", _TimedLog(kafka_log(pipeline, kafka), begin, stopwatch))
    options = RunOptions(until_caught_up=passage.events is not None)
    host = Host(pipeline, log, options, offloading(pipeline, OffloadSettings()))
    prepared = await host.prepare()
    host.assign(frozenset(range(prepared.shards)))
    async with asyncio.TaskGroup() as tasks:
        ending = tasks.create_task(_stop_when_told(host, stop))
        await host.serve(lambda _: None)
        ending.cancel()
    return Finished(
        events=host.counts().records_out,
        seconds=stopwatch.seconds,
        cpu_s=stopwatch.cpu_s,
        shards=prepared.shards,
    )


async def _stop_when_told(host: Host, stop: asyncio.Event) -> None:
    await stop.wait()
    await host.stop(_DRAIN_S)


async def _run(order: Order) -> Finished:
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    has_begun = False

    def end() -> None:
        # Before the passage has begun, or where it has an end of its own, nobody is left who would want its figures.
        if not has_begun or order.measured.events is not None:
            os._exit(1)
        loop.call_soon_threadsafe(stop.set)

    def began() -> None:
        nonlocal has_begun
        has_begun = True
        answer(Began())

    on_stdin_end(end)
    kafka = KafkaSettings.from_json(order.kafka)
    if order.warm_up is not None:
        await _pass(kafka, order.work, order.warm_up, lambda: None, stop)
    return await _pass(kafka, order.work, order.measured, began, stop)


def main() -> int:
    """Obey one order; answers the exit code."""
    order = receive_order()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        finished = runner.run(_run(order))
    answer(finished)
    return 0


if __name__ == "__main__":
    sys.exit(main())
