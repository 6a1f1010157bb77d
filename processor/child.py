"""One worker process, as its agent sees it: born with a channel, heard until it is gone, never outliving the agent."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Final

from millstream.processor.control import (
    STACK_SIGNAL,
    TO_AGENT,
    Channel,
    ControlError,
    Failed,
    Start,
    ToAgent,
    ToWorker,
    Trouble,
)
from millstream.processor.stage_page import StagePageReader

# What a dead process has said is in the socket's buffer already; only its own children could keep the socket open.
_LAST_WORDS_WAIT_S: Final = 0.2
_REAP_WAIT_S: Final = 1.0
_STACK_WAIT_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Exit:
    """How a process ended. `is_clean` says that it ended itself and called that a success."""

    text: str
    is_clean: bool = False


class Child:
    """Starts one incarnation of a worker and watches it.

    `heard` is called for each message, and `gone` once, after the last of them. Both are called in the event loop.
    """

    def __init__(
        self, start: Start, heard: Callable[[Child, ToAgent], None], gone: Callable[[Child, Exit], None]
    ) -> None:
        self.start = start
        self._heard = heard
        self._gone = gone
        self._process: asyncio.subprocess.Process | None = None
        self._channel: Channel[ToAgent] | None = None
        self._is_killed = False
        self._page: StagePageReader | None = None

    @property
    def pid(self) -> int | None:
        """The process's id, once there is one."""
        return self._process.pid if self._process else None

    @property
    def page(self) -> StagePageReader | None:
        """What the process says of its stages, while there is a process."""
        return self._page

    @property
    def is_stopped(self) -> bool:
        """Whether somebody has stopped the process with a signal or a debugger; False where it cannot be told."""
        try:
            with open(f"/proc/{self.pid}/stat", "rb") as file:
                return file.read().rpartition(b")")[2].split()[0] in (b"T", b"t")
        except (OSError, IndexError):
            return False

    async def run(self) -> None:
        """Start the process and stay until it is gone; cancelling kills it first."""
        try:
            with closing(StagePageReader()) as page:
                self._page = page
                try:
                    exit_ = await self._live(page.descriptor)
                finally:
                    self._page = None
        except OSError as error:
            exit_ = Exit(f"it could not be started: {error}")
        self._gone(self, exit_)

    def send_nowait(self, message: ToWorker) -> None:
        """Tell the process; one that is gone or has stopped listening is told nothing, and the latter is killed."""
        if self._channel is None:
            return
        try:
            self._channel.send_nowait(message)
        except ControlError as error:
            self._give_up(error)

    def kill(self) -> None:
        """End the process at once, or as soon as it exists."""
        self._is_killed = True
        if self._process is not None and self._process.returncode is None:
            try:
                self._process.kill()
            except ProcessLookupError:
                pass

    def show_stack_and_kill(self) -> None:
        """Have the process write to stderr where its code is, which it can even while it hangs, and end it."""
        with contextlib.suppress(ProcessLookupError):
            if self._process is not None:
                self._process.send_signal(STACK_SIGNAL)
        asyncio.get_running_loop().call_later(_STACK_WAIT_S, self.kill)

    async def _live(self, page_descriptor: int) -> Exit:
        ours, theirs = socket.socketpair()
        with theirs:
            channel = await Channel.over(ours, TO_AGENT)
            try:
                self._process = process = await _spawn(theirs, page_descriptor)
                # The last copy of the other end must be the process's own, or its end would not be noticed.
                theirs.close()
                self._channel = channel
                channel.send_nowait(self.start)
                if self._is_killed:
                    self.kill()
                return _exit_from(await self._listen_until_gone(process, channel))
            finally:
                await self._reap()
                await channel.close()

    async def _reap(self) -> None:
        self.kill()
        if self._process is not None:
            # One that is stuck in the kernel is left to it.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REAP_WAIT_S):
                    await self._process.wait()

    async def _listen_until_gone(self, process: asyncio.subprocess.Process, channel: Channel[ToAgent]) -> int:
        async with asyncio.TaskGroup() as tasks:
            listening = tasks.create_task(self._listen(channel))
            try:
                returncode = await process.wait()
                await asyncio.wait({listening}, timeout=_LAST_WORDS_WAIT_S)
            finally:
                listening.cancel()
        return returncode

    async def _listen(self, channel: Channel[ToAgent]) -> None:
        try:
            while (message := await channel.receive()) is not None:
                self._heard(self, message)
        except ControlError as error:
            self._give_up(error)

    def _give_up(self, error: ControlError) -> None:
        self._heard(self, Failed(Trouble.DEFECT, f"worker {self.start.worker}: {error}"))
        self.kill()


async def _spawn(theirs: socket.socket, page_descriptor: int) -> asyncio.subprocess.Process:
    # The child inherits stdout and stderr: what user code prints belongs to the user, not to us. With -P a file in the
    # working directory that is named like a standard module cannot break the worker's own imports.
    return await asyncio.create_subprocess_exec(
        sys.executable,
        "-P",
        "-m",
        "millstream.processor.worker_process",
        str(theirs.fileno()),
        str(page_descriptor),
        str(os.getpid()),
        stdin=asyncio.subprocess.DEVNULL,
        pass_fds=(theirs.fileno(), page_descriptor),
    )


def _exit_from(returncode: int) -> Exit:
    if returncode >= 0:
        return Exit(f"it exited with code {returncode}", is_clean=returncode == 0)
    try:
        name = signal.Signals(-returncode).name
    except ValueError:
        name = f"signal {-returncode}"
    return Exit(f"it was ended by {name}")
