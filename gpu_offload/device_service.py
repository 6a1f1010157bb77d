"""The work of a device's process: workers' batches in, runs on the device, answers out.

Batches are run in the event loop itself: a thread in between would cost more than many a batch takes, and while the
device is at work, nothing else is of use. Stages warm up in a thread, since that takes seconds. A run that fails for
good ends the process: nothing that the device says can be trusted after that.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from typing import Final, NoReturn, TypeAlias

import msgspec

from millstream.gpu_offload import splitting
from millstream.gpu_offload.backend import Backend, FunctionError, NotLoadableError, StickyError
from millstream.gpu_offload.framed_socket import FramedSocket, receive_hello
from millstream.gpu_offload.protocol import (
    PROTOCOL,
    STICKY_EXIT_CODE,
    Compute,
    Done,
    Load,
    Message,
    ProtocolError,
    Refused,
    StageOrder,
    StageReady,
    StageUnavailable,
    Trouble,
    Welcome,
)
from millstream.gpu_offload.queueing import Request, RunQueue
from millstream.gpu_offload.slots import Segment, SlotMemory, SlotTooSmallError, segment_in
from millstream.gpu_offload.warm_up import WarmStage, WrongAnswerError, warm_up
from millstream.processor.event_log import EventLog

ROWS_MAX: Final = 1 << 16
_GREETING_WAIT_S: Final = 5.0
# How long batches are joined to smaller runs after one that the memory did not hold.
_CAP_S: Final = 600.0

Work: TypeAlias = tuple[Segment, Compute]
_log: Final = EventLog(logging.getLogger("millstream.device"))


@dataclass(slots=True)
class _Client:
    """One connected worker. `stages` are its numbers for stages, and ours."""

    name: str
    memory: SlotMemory
    detach: Callable[[], None]
    socket: FramedSocket | None = None
    stages: dict[int, int] = field(default_factory=dict)


@dataclass(slots=True)
class _Stage:
    """One stage, whichever workers want it."""

    number: int
    order: StageOrder
    warm: WarmStage | None = None
    trouble: StageUnavailable | None = None
    warming: asyncio.Task[None] | None = None


class DeviceService:
    """Serves the workers that connect to a listening socket with one device."""

    def __init__(self, backend: Backend, rows_max: int = ROWS_MAX) -> None:
        self._backend = backend
        self._queue: RunQueue[Work] = RunQueue(rows_max)
        self._clients: dict[int, _Client] = {}
        self._stages: dict[bytes, _Stage] = {}
        self._numbers = count(1)
        self._runs = 0
        self._is_due = False
        self._greetings: set[asyncio.Task[None]] = set()
        # One, since stages come out of the same modules, which are not to be loaded twice at a time.
        self._warming = ThreadPoolExecutor(1, thread_name_prefix="warm-up")

    async def serve(self, listening: socket.socket) -> None:
        """Serve until cancelled. Owns the socket, which listens and does not block."""
        loop = asyncio.get_running_loop()
        with closing(listening):
            while True:
                end, _ = await loop.sock_accept(listening)
                task = loop.create_task(self._greet(end))
                self._greetings.add(task)
                task.add_done_callback(self._greetings.discard)

    # -- workers ------------------------------------------------------------------------------------------------

    async def _greet(self, end: socket.socket) -> None:
        end.setblocking(False)
        try:
            async with asyncio.timeout(_GREETING_WAIT_S):
                hello, descriptor = await receive_hello(end)
            try:
                if hello.protocol != PROTOCOL:
                    raise ProtocolError(f"the worker speaks version {hello.protocol} and the device {PROTOCOL}")
                memory = SlotMemory(descriptor, hello.slots, hello.slot_bytes)
            finally:
                os.close(descriptor)
            client = _Client(hello.worker, memory, self._backend.attach(memory.bytes))
            number = next(self._numbers)
            client.socket = await FramedSocket.over(end, partial(self._heard, number), partial(self._lost, number))
        except (TimeoutError, OSError, ValueError, ProtocolError) as error:
            _log.warning("worker.refused", reason=error)
            end.close()
            return
        self._clients[number] = client
        client.socket.send(Welcome(os.getpid(), self._backend.description))

    def _lost(self, number: int, reason: str) -> None:
        client = self._clients.pop(number, None)
        if client is not None:
            _log.info("worker.gone", worker=client.name, reason=reason)
            self._queue.drop(number)
            client.detach()

    def _heard(self, number: int, message: Message) -> None:
        match message:
            case Load(stage, order):
                self._load(number, stage, order)
            case Compute():
                self._add(number, message)
            case _:
                raise ProtocolError(f"a worker does not say {type(message).__name__}")

    def _send(self, number: int, message: Message) -> None:
        client = self._clients.get(number)
        if client is not None and client.socket is not None:
            client.socket.send(message)

    # -- stages -------------------------------------------------------------------------------------------------

    def _load(self, number: int, name: int, order: StageOrder) -> None:
        stage = self._stages.setdefault(msgspec.msgpack.encode(order), _Stage(next(self._numbers), order))
        self._clients[number].stages[name] = stage.number
        self._forget_other_versions(stage)
        if stage.warm is not None:
            self._prove_again(stage, stage.warm)
        elif stage.warming is None:
            stage.trouble = None
            stage.warming = asyncio.create_task(self._warm_up(stage))
        if stage.warming is None:
            self._say_state(stage)

    def _forget_other_versions(self, stage: _Stage) -> None:
        """Let go of what the same stage had on the device before it changed, where no worker wants that any more."""
        wanted = {number for client in self._clients.values() for number in client.stages.values()}
        for key, other in list(self._stages.items()):
            if other.order.name == stage.order.name and other.number not in wanted and other.warming is None:
                del self._stages[key]

    async def _warm_up(self, stage: _Stage) -> None:
        try:
            loop = asyncio.get_running_loop()
            stage.warm = await loop.run_in_executor(self._warming, warm_up, self._backend, stage.order)
        except StickyError as error:
            self._end(error)
        except NotLoadableError as error:
            stage.trouble = StageUnavailable(0, str(error), isinstance(error, WrongAnswerError))
        except Exception as error:
            # The user's modules and functions can raise anything; what they say is about code, not about records.
            text = f"stage {stage.order.name!r} cannot be loaded: {type(error).__name__}: {error}"
            stage.trouble = StageUnavailable(0, text)
        finally:
            stage.warming = None
        self._say_state(stage)

    def _prove_again(self, stage: _Stage, warm: WarmStage) -> None:
        stage.trouble = None
        if warm.canary is None:
            return
        try:
            warm.canary.prove(warm.runner)
        except StickyError as error:
            self._end(error)
        except Exception as error:
            stage.trouble = StageUnavailable(0, str(error), isinstance(error, WrongAnswerError))

    def _say_state(self, stage: _Stage) -> None:
        """Tell all workers that want the stage."""
        for number, client in self._clients.items():
            for name, known in client.stages.items():
                if known == stage.number:
                    self._send(number, self._state(stage, name))

    def _state(self, stage: _Stage, name: int) -> Message:
        if stage.trouble is not None or stage.warm is None:
            return msgspec.structs.replace(stage.trouble or StageUnavailable(0, "it is not loaded"), stage=name)
        return StageReady(name, stage.warm.canary is not None, stage.warm.timings)

    # -- batches ------------------------------------------------------------------------------------------------

    def _add(self, number: int, compute: Compute) -> None:
        client = self._clients[number]
        stage = self._stage(client.stages.get(compute.stage))
        if stage is None or stage.warm is None or stage.trouble is not None:
            self._send(number, Refused(compute.batch, Trouble.FUNCTION, "the stage is not ready on the device"))
            return
        if compute.slot >= client.memory.slots:
            raise ProtocolError(f"there is no slot {compute.slot}")
        try:
            slot = client.memory.slot(compute.slot)
            segment = segment_in(slot, stage.warm.definition, compute.rows, compute.texts)
        except SlotTooSmallError as error:
            raise ProtocolError(str(error)) from error
        self._queue.add(Request(number, stage.number, compute.rows, compute.deadline_s, (segment, compute)))
        self._make_due()

    def _stage(self, number: int | None) -> _Stage | None:
        return next((stage for stage in self._stages.values() if stage.number == number), None)

    def _make_due(self) -> None:
        if not self._is_due:
            # After all that is readable by now was read, so that what came at once is computed together.
            self._is_due = True
            asyncio.get_running_loop().call_soon(self._run_next)

    def _run_next(self) -> None:
        self._is_due = False
        turn = self._queue.take(time.monotonic())
        for request in turn.expired:
            _, compute = request.work
            self._send(request.client, Refused(compute.batch, Trouble.EXPIRED, "nobody waits for the batch any more"))
        if turn.together:
            self._run(turn.together)
        if self._queue:
            self._make_due()

    def _run(self, requests: Sequence[Request[Work]]) -> None:
        stage = self._stage(requests[0].stage)
        assert stage is not None
        assert stage.warm is not None
        begun = time.perf_counter()
        try:
            outcome = splitting.run(stage.warm.runner, [request.work[0] for request in requests], self._backend.free)
        except (FunctionError, NotLoadableError) as error:
            self._count_run()
            for request in requests:
                self._send(request.client, Refused(request.work[1].batch, Trouble.FUNCTION, str(error)))
            return
        except Exception as error:
            self._end(error)
        seconds = time.perf_counter() - begun
        self._count_run()
        if outcome.rows_max:
            self._queue.cap(stage.number, outcome.rows_max, time.monotonic() + _CAP_S)
        for place, request in enumerate(requests):
            self._answer(request, place in outcome.failed, seconds, outcome.rows_max)

    def _answer(self, request: Request[Work], has_failed: bool, seconds: float, rows_max: int) -> None:
        batch = request.work[1].batch
        if has_failed:
            text = f"{request.rows} rows do not fit into the device's memory"
            self._send(request.client, Refused(batch, Trouble.OUT_OF_MEMORY, text, rows_max))
        else:
            self._send(request.client, Done(batch, seconds, rows_max))

    def _count_run(self) -> None:
        self._runs += 1
        for client in self._clients.values():
            client.memory.runs = self._runs

    def _end(self, error: Exception) -> NoReturn:
        _log.error("device.lost", error=error, kind=type(error).__name__)
        os._exit(STICKY_EXIT_CODE)
