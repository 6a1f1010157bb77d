"""A device's process as its node sees it: born, heard, killed, and started anew with growing patience."""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

import msgspec

from millstream.gpu_offload.device_choice import check_device
from millstream.gpu_offload.protocol import STICKY_EXIT_CODE, DeviceNews
from millstream.processor.errors import SettingsError
from millstream.processor.restarts import RestartPolicy, deaths_in_row, delay_s

_REAP_WAIT_S: Final = 1.0
_LINE_BYTES_MAX: Final = 1 << 16
# As much as a Unix socket's address holds on every system.
_PATH_BYTES_MAX: Final = 103


@dataclass(frozen=True, slots=True)
class ChildState:
    """How the process is. `unavailable`: there is no such device, and it is not started again."""

    state: Literal["starting", "up", "gone", "unavailable"]
    text: str = ""


class DeviceChild:
    """Keeps the process of one device running. `heard` is called in the event loop for each change.

    `device` is a text of `device_choice`; the process listens in `directory`, which only this user may enter.
    Raises SettingsError for a device that cannot be.
    """

    def __init__(
        self,
        name: str,
        device: str,
        directory: Path,
        heard: Callable[[ChildState], None],
        policy: RestartPolicy | None = None,
        log_level: str = "warning",
    ) -> None:
        check_device(device)
        self.name = name
        self.path = str(directory / f"{name}.sock")
        if len(os.fsencode(self.path)) > _PATH_BYTES_MAX:
            raise SettingsError("the device cannot be started", [f"{self.path} is too long for a Unix socket's path"])
        self._device = device
        self._heard = heard
        self._policy = policy or RestartPolicy()
        self._log_level = log_level
        self._process: asyncio.subprocess.Process | None = None

    @property
    def pid(self) -> int | None:
        """The process's id, while there is one."""
        return self._process.pid if self._process else None

    async def run(self) -> None:
        """Keep it running until there is no such device; cancelling kills it."""
        deaths = 0
        while True:
            begun = time.monotonic()
            self._heard(ChildState("starting"))
            try:
                code, unavailable = await self._live()
            except OSError as error:
                code, unavailable = f"it could not be started: {error}", None
            if unavailable is not None:
                self._heard(ChildState("unavailable", unavailable))
                return
            deaths = deaths_in_row(deaths, time.monotonic() - begun, self._policy)
            self._heard(ChildState("gone", code))
            await asyncio.sleep(delay_s(deaths, self._policy))

    def kill(self) -> None:
        """End the process at once; it is started again."""
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.kill()

    async def _live(self) -> tuple[str, str | None]:
        """One life: how it ended, and where there is no device, why."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours, limit=_LINE_BYTES_MAX)
            try:
                self._process = process = await self._spawn(theirs)
                theirs.close()
                unavailable = await self._listen(reader)
                return _ended(await process.wait()), unavailable
            finally:
                await self._reap()
                writer.close()
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(self.path)

    async def _listen(self, reader: asyncio.StreamReader) -> str | None:
        unavailable = None
        while line := await reader.readline():
            news = msgspec.json.decode(line, type=DeviceNews)
            if news.is_up:
                self._heard(ChildState("up", news.text))
            else:
                unavailable = news.text
        return unavailable

    async def _reap(self) -> None:
        self.kill()
        if self._process is not None:
            # One that is stuck in the driver is left to the kernel.
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_REAP_WAIT_S):
                    await self._process.wait()
            self._process = None

    async def _spawn(self, theirs: socket.socket) -> asyncio.subprocess.Process:
        # Spawned and never forked: a CUDA context does not survive a fork. With -P a file in the working directory that
        # is named like a standard module cannot break the process's own imports.
        return await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",
            "-m",
            "millstream.gpu_offload.device_process",
            self._device,
            self.path,
            str(theirs.fileno()),
            str(os.getpid()),
            self._log_level,
            stdin=asyncio.subprocess.DEVNULL,
            pass_fds=(theirs.fileno(),),
        )


def _ended(code: int) -> str:
    if code == STICKY_EXIT_CODE:
        return "the device was lost"
    return f"its process exited with code {code}" if code >= 0 else f"its process was ended by signal {-code}"
