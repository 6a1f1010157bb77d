"""One connection of a worker to a device's process, with the memory that goes with it.

A slot belongs to a batch from the moment it is filled until its answer has come, whether or not anybody still waits for
that. With the connection all slots are given up: the next one has new memory, so that nothing that a dying process
still does to the old can be taken for an answer.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import struct
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, Final, TypeAlias

import numpy.typing as npt

from millstream.gpu_offload.framed_socket import FramedSocket, send_hello
from millstream.gpu_offload.protocol import (
    PROTOCOL,
    Compute,
    Done,
    Hello,
    Load,
    Refused,
    StageOrder,
    StageReady,
    StageUnavailable,
    Welcome,
)
from millstream.gpu_offload.slots import (
    Segment,
    SlotMemory,
    SlotTooSmallError,
    create_memory,
    fill,
    segment_in,
    text_sizes,
)
from millstream.processor.errors import MillstreamError
from millstream.processor.offloading import ArrayColumns, StageDefinition

StageNews: TypeAlias = StageReady | StageUnavailable
_CONNECT_WAIT_S: Final = 5.0
_WELCOME_WAIT_S: Final = 10.0
_PEER: Final = struct.Struct("3i")


class DeviceTroubleError(MillstreamError):
    """A batch was not computed on the device."""


class BusyError(DeviceTroubleError):
    """There is no room for the batch now, which says nothing about the device."""


class RefusedBatchError(DeviceTroubleError):
    """The device's process says that it did not compute the batch."""

    def __init__(self, refused: Refused) -> None:
        super().__init__(refused.text)
        self.trouble = refused.trouble
        self.rows_max = refused.rows_max


class LateError(DeviceTroubleError):
    """There was no answer in time. `is_hung`: meanwhile the device has not finished anything at all."""

    def __init__(self, text: str, *, is_hung: bool) -> None:
        super().__init__(text)
        self.is_hung = is_hung


class GoneError(DeviceTroubleError):
    """The device's process has died."""


@dataclass(frozen=True, slots=True)
class Answer:
    """What the device computed. `rows_max` is not 0 where its memory held no more rows at once."""

    arrays: Mapping[str, npt.NDArray[Any]]
    rows_max: int


@dataclass(slots=True)
class _Flight:
    """A batch that has a slot."""

    slot: int
    waiter: asyncio.Future[None]
    reply: Done | Refused | None = None
    is_left: bool = False


class DeviceLink:
    """A connection that has been made; `closed` is done when it is at its end, with the reason."""

    def __init__(self, memory: SlotMemory, stage_news: Callable[[StageNews], None]) -> None:
        self._memory = memory
        self._stage_news = stage_news
        self._free = list(range(memory.slots))
        self._flights: dict[int, _Flight] = {}
        self._batches = count(1)
        self._socket: FramedSocket | None = None
        self._process: _Process | None = None
        loop = asyncio.get_running_loop()
        self._welcomed: asyncio.Future[Welcome] = loop.create_future()
        self.closed: asyncio.Future[str] = loop.create_future()
        self.device = ""

    @classmethod
    async def connect(
        cls, path: str, worker: str, slots: int, slot_bytes: int, stage_news: Callable[[StageNews], None]
    ) -> DeviceLink:
        """Connect to the process that listens at `path`. Raises OSError, TimeoutError, GoneError."""
        descriptor = create_memory(slots, slot_bytes)
        try:
            link = cls(SlotMemory(descriptor, slots, slot_bytes), stage_news)
            await link._open(path, Hello(PROTOCOL, worker, slots, slot_bytes), descriptor)
        finally:
            os.close(descriptor)
        return link

    def load(self, stage: int, order: StageOrder) -> None:
        """Have a stage made ready, or tested again; `stage_news` hears of it."""
        self._send(Load(stage, order))

    async def compute(self, stage: int, definition: StageDefinition, columns: ArrayColumns, wait_s: float) -> Answer:
        """The device's answer, in arrays of one's own. Raises DeviceTroubleError of a kind that says what was wrong."""
        if self.closed.done():
            raise GoneError(self.closed.result())
        if not self._free:
            raise BusyError("all slots are taken")
        slot = self._free[-1]
        sizes = text_sizes(columns, definition)
        try:
            segment = segment_in(self._memory.slot(slot), definition, columns.rows, sizes)
        except SlotTooSmallError as error:
            raise BusyError(str(error)) from error
        fill(segment, columns)
        self._free.pop()
        batch = next(self._batches)
        flight = self._flights[batch] = _Flight(slot, asyncio.get_running_loop().create_future())
        self._send(Compute(batch, stage, slot, columns.rows, sizes, time.monotonic() + wait_s))
        try:
            return _answer(await self._reply(flight, wait_s), segment)
        finally:
            flight.is_left = True
            if flight.reply is not None:
                self._land(batch)

    def kill(self) -> None:
        """End the device's process, which does not answer; whoever started it starts another."""
        if self._process is not None:
            self._process.kill()

    def close(self) -> None:
        """End the connection."""
        if self._socket is not None:
            self._socket.close()
        self._lost("closed")

    async def _open(self, path: str, hello: Hello, descriptor: int) -> None:
        loop = asyncio.get_running_loop()
        end = socket.socket(socket.AF_UNIX)
        end.setblocking(False)
        try:
            async with asyncio.timeout(_CONNECT_WAIT_S):
                await loop.sock_connect(end, path)
            self._process = _Process.of_peer(end)
            send_hello(end, hello, descriptor)
            self._socket = await FramedSocket.over(end, self._heard, self._lost)
        except BaseException:
            end.close()
            raise
        try:
            async with asyncio.timeout(_WELCOME_WAIT_S):
                welcome = await self._welcomed
        except TimeoutError:
            # Nobody else may be there to notice that it hangs.
            self.kill()
            self.close()
            raise
        except BaseException:
            self.close()
            raise
        self._process = self._process or _Process(welcome.pid)
        self.device = welcome.device

    async def _reply(self, flight: _Flight, wait_s: float) -> Done | Refused:
        runs = self._memory.runs
        timer = asyncio.get_running_loop().call_later(wait_s, _wake, flight.waiter)
        try:
            await flight.waiter
        finally:
            timer.cancel()
        if flight.reply is not None:
            return flight.reply
        if self.closed.done():
            raise GoneError(self.closed.result())
        raise LateError(f"no answer within {wait_s * 1000:.0f} ms", is_hung=self._memory.runs == runs)

    def _land(self, batch: int) -> None:
        flight = self._flights.pop(batch, None)
        if flight is not None:
            self._free.append(flight.slot)

    def _heard(self, message: object) -> None:
        match message:
            case Welcome():
                if not self._welcomed.done():
                    self._welcomed.set_result(message)
            case StageReady() | StageUnavailable():
                self._stage_news(message)
            case Done(batch) | Refused(batch) if batch in self._flights:
                flight = self._flights[batch]
                flight.reply = message
                if flight.is_left:
                    self._land(batch)
                _wake(flight.waiter)

    def _lost(self, reason: str) -> None:
        if not self.closed.done():
            self.closed.set_result(reason)
        if not self._welcomed.done():
            self._welcomed.set_exception(GoneError(reason))
        if self._process is not None:
            self._process.close()
        for flight in self._flights.values():
            _wake(flight.waiter)

    def _send(self, message: Load | Compute) -> None:
        assert self._socket is not None
        self._socket.send(message)


def _answer(reply: Done | Refused, segment: Segment) -> Answer:
    if isinstance(reply, Refused):
        raise RefusedBatchError(reply)
    return Answer({name: output.copy() for name, output in segment.outputs.items()}, reply.rows_max)


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


class _Process:
    """A process by a handle, which never means another one that has got its number, where there are such handles."""

    def __init__(self, pid: int) -> None:
        self._pid = pid
        try:
            self._handle: int | None = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self._handle = None

    @classmethod
    def of_peer(cls, end: socket.socket) -> _Process | None:
        """The process at the other end of a connected Unix socket, where the system tells."""
        if sys.platform != "linux":
            return None
        pid, _, _ = _PEER.unpack(end.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _PEER.size))
        return cls(pid)

    def kill(self) -> None:
        with contextlib.suppress(OSError):
            if self._handle is not None:
                signal.pidfd_send_signal(self._handle, signal.SIGKILL)
            elif not hasattr(os, "pidfd_open"):
                os.kill(self._pid, signal.SIGKILL)

    def close(self) -> None:
        if self._handle is not None:
            os.close(self._handle)
            self._handle = None
