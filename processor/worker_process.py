"""The main program of a worker process: a host of shards, and the channel to the agent that tells it which.

Started by the agent as `python -m millstream.processor.worker_process DESCRIPTOR PAGE PARENT`, with an open socket
under the first descriptor and shared memory under the second (`stage_page`). It never outlives its agent.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import importlib
import logging
import os
import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any, Final, cast

from millstream.processor.allocator import tune_allocator
from millstream.processor.control import (
    STACK_SIGNAL,
    TO_WORKER,
    Assign,
    Channel,
    Done,
    Failed,
    Leaving,
    Progress,
    Ready,
    ShardFinished,
    Start,
    Stop,
    ToWorker,
    Trouble,
)
from millstream.processor.errors import (
    InvariantError,
    MillstreamError,
    PipelineError,
    RefusedError,
    SettingsError,
    UnavailableError,
    UserError,
)
from millstream.processor.event_log import EventLog, configure_logging
from millstream.processor.event_loop import new_event_loop
from millstream.processor.messages import tell
from millstream.processor.offload_report import DeviceLeased, DeviceRefused
from millstream.processor.parent import die, die_with_parent
from millstream.processor.process_use import process_use
from millstream.processor.shard_host import (
    HostEvent,
    ShardCommitted,
    ShardHost,
    ShardReleased,
    ShardRestarted,
    ShardStarted,
)
from millstream.processor.stage_page import StagePage

PROGRESS_INTERVAL_S: Final = 0.2
# A host gets this much more than it was told to take before the worker ends without it.
_STOP_GRACE_S: Final = 0.5
# How long threads and exit handlers of user code may keep a process whose work is over.
_EXIT_WAIT_S: Final = 2.0
_GREETING_WAIT_S: Final = 30.0


class _StopTimeoutError(MillstreamError):
    """The host did not come to its end in time."""


class Worker:
    """One incarnation of a worker: obeys its agent, reports to it, and ends when its host does."""

    def __init__(self, start: Start, channel: Channel[ToWorker], host: ShardHost, page: StagePage) -> None:
        self._start = start
        self._page = page
        self._channel = channel
        self._host = host
        self._log = EventLog(logging.getLogger("millstream.worker"), worker=start.worker, incarnation=start.incarnation)
        self._stop_timeout_s: float | None = None
        self._stop_asked = asyncio.Event()
        self._is_serving = False
        self._wanted: frozenset[int] = frozenset()

    async def run(self) -> int:
        """Serve until the host is done or told to stop; answers the exit code. The agent knows why by then."""
        try:
            await self._serve_with_company()
        except Exception as error:
            failed = failure(error, may_quote_records=self._is_serving)
            if failed.trouble is not Trouble.FINAL:
                self._log.error("worker.failed", error=failed.text, where=traceback_of(error))
            self._say_progress(0.0)
            self._channel.send_nowait(failed)
            return 1
        return 0

    def ask_stop(self, timeout_s: float) -> None:
        """Drain within the bound; where that is asked more than once the first bound holds."""
        if self._stop_timeout_s is None:
            self._stop_timeout_s = timeout_s
            self._stop_asked.set()

    def on_sigterm(self) -> None:
        """Somebody other than the agent wants this process to end: tell the agent, and drain."""
        if self._stop_timeout_s is None:
            self._channel.send_nowait(Leaving())
            self.ask_stop(self._start.drain_timeout_s)

    async def _serve_with_company(self) -> None:
        async with asyncio.TaskGroup() as tasks:
            company = [tasks.create_task(self._obey()), tasks.create_task(self._report_progress())]
            await self._prepare_and_serve(tasks)
            for task in company:
                task.cancel()
        self._say_progress(0.0)
        if self._stop_timeout_s is None:
            self._channel.send_nowait(Done())

    async def _prepare_and_serve(self, tasks: asyncio.TaskGroup) -> None:
        stop_asked = tasks.create_task(self._stop_asked.wait())
        preparing = tasks.create_task(self._host.prepare())
        await asyncio.wait({preparing, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
        if not preparing.done():
            # Nothing is in hand yet, so there is nothing to drain.
            preparing.cancel()
            return
        prepared = preparing.result()
        # What is loaded by now stays, and no collection need look at it again: that took 50 to 150 ms a few times in
        # every ten seconds under load, in which no record got on.
        gc.freeze()
        ready = Ready(prepared.pipeline, prepared.shards, prepared.watch_plan, prepared.requires_device)
        self._channel.send_nowait(ready)
        self._is_serving = True
        serving = tasks.create_task(self._host.serve(self._report, self._page))
        await asyncio.wait({serving, stop_asked}, return_when=asyncio.FIRST_COMPLETED)
        if not serving.done():
            await self._stop_host(serving)
        stop_asked.cancel()

    async def _stop_host(self, serving: asyncio.Task[None]) -> None:
        timeout_s = self._stop_timeout_s or 0.0
        try:
            async with asyncio.timeout(timeout_s + _STOP_GRACE_S):
                await self._host.stop(timeout_s)
                await asyncio.wait({serving})
        except TimeoutError as error:
            raise _StopTimeoutError(
                f"worker {self._start.worker} did not drain within {timeout_s:g} s; what it had not committed is redone"
            ) from error

    async def _obey(self) -> None:
        while (message := await self._channel.receive()) is not None:
            match message:
                case Assign(shards, stalls, tokens):
                    self._wanted = frozenset(shards)
                    self._host.assign(self._wanted, stalls, tokens)
                case Stop(timeout_s):
                    self.ask_stop(timeout_s)
                case DeviceLeased() | DeviceRefused():
                    self._host.device_news(message)
        # The agent is dead, and another node may own our shards by now. Kafka's fence keeps us harmless; being gone
        # keeps us from being in the way.
        die()

    async def _report_progress(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            due = loop.time() + PROGRESS_INTERVAL_S
            await asyncio.sleep(PROGRESS_INTERVAL_S)
            self._say_progress(max(0.0, loop.time() - due) * 1000)

    def _say_progress(self, loop_lag_ms: float) -> None:
        progress = Progress(self._host.counts(), loop_lag_ms, self._host.measures(), process_use())
        self._channel.send_nowait(progress)

    def _report(self, event: HostEvent) -> None:
        match event:
            case ShardStarted(shard):
                self._log.info("shard.started", shard=shard)
            case ShardCommitted(shard):
                self._log.debug("shard.committed", shard=shard)
            case ShardReleased(shard) if shard in self._wanted and self._stop_timeout_s is None:
                self._channel.send_nowait(ShardFinished(shard))
                return
            case ShardReleased(shard):
                self._log.info("shard.released", shard=shard)
            case ShardRestarted(shard, reason):
                self._log.warning("shard.restarted", shard=shard, reason=reason)
        self._channel.send_nowait(event)


def failure(error: BaseException, *, may_quote_records: bool) -> Failed:
    """What the agent is told about the error that ends this worker.

    The message of an error that is not ours is left out where it may quote a record.
    """
    causes = list(_leaves(error))
    for cause in causes:
        if isinstance(cause, UserError | RefusedError):
            return Failed(Trouble.FINAL, str(cause), 2 if isinstance(cause, PipelineError | SettingsError) else 1)
    for cause in causes:
        if isinstance(cause, UnavailableError):
            return Failed(Trouble.WORLD, str(cause))
    first = causes[0]
    if isinstance(first, MillstreamError) and not isinstance(first, InvariantError):
        return Failed(Trouble.DEFECT, str(first))
    message = "" if may_quote_records and not isinstance(first, MillstreamError) else f": {first}"
    return Failed(Trouble.DEFECT, f"unexpected {type(first).__name__}{message}")


def traceback_of(error: BaseException) -> str:
    """Where the error, and each one in it, was raised; frames only, since a message may quote a record."""
    own = "".join([*traceback.format_tb(error.__traceback__), type(error).__name__])
    members = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return "\n".join([own, *(traceback_of(member) for member in members)])


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for member in error.exceptions:
            yield from _leaves(member)
    else:
        yield error


def make_host(start: Start) -> ShardHost:
    """The host that `start.factory` makes; this is where user code is loaded."""
    module, separator, name = start.factory.partition(":")
    if not separator:
        raise SettingsError("the worker cannot start", [f"host factory {start.factory!r} is not module:function"])
    factory = cast("Callable[..., ShardHost]", getattr(importlib.import_module(module), name))
    return factory(**start.arguments)


async def serve_agent(end: socket.socket, page: StagePage) -> int:
    """Everything that a worker process does, over its end of the control channel; answers the exit code."""
    channel = await Channel.over(end, TO_WORKER)
    try:
        async with asyncio.timeout(_GREETING_WAIT_S):
            start = await channel.receive()
        if not isinstance(start, Start):
            return 1
        configure_logging(start.log_level)
        try:
            worker = Worker(start, channel, make_host(start), page)
        except Exception as error:
            failed = failure(error, may_quote_records=False)
            if failed.trouble is Trouble.DEFECT:
                traceback.print_exception(error)
            channel.send_nowait(failed)
            return 1
        # Until here a SIGTERM ends the process at once, since loading user code may block the loop for long.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, worker.on_sigterm)
        return await worker.run()
    finally:
        await channel.close()


def main(arguments: list[str]) -> int:
    """Run a worker on the socket, the page and for the parent that the arguments name; answers the exit code."""
    descriptor, page_descriptor, parent = (int(argument) for argument in arguments)
    die_with_parent(parent)
    # Ctrl-C reaches every process of the terminal; the agent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    faulthandler.register(STACK_SIGNAL)
    tune_allocator()
    end = socket.socket(fileno=descriptor)
    # Processes that user code starts must not keep the channel open.
    end.set_inheritable(False)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        code = runner.run(serve_agent(end, StagePage(page_descriptor)))
    bound_exit(code)
    tell(None)
    return code


def bound_exit(code: int) -> None:
    """Threads that user code left running, and its exit handlers, get a moment and then end with the process."""
    timer: Any = threading.Timer(_EXIT_WAIT_S, os._exit, [code])
    timer.daemon = True
    timer.start()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
