"""The main program of a device's process, the only one that touches the device.

Started as `python -m millstream.gpu_offload.device_process DEVICE SOCKET DESCRIPTOR PARENT LEVEL`: which
device (`device_choice`), where to listen, an open socket to whoever started it, that one's process id, and from which
level on to log. It says how it is on the descriptor, a line of JSON each, and never outlives its parent.
"""

from __future__ import annotations

import asyncio
import contextlib
import faulthandler
import signal
import socket
import sys
from pathlib import Path
from typing import Final

import msgspec

from millstream.gpu_offload.backend import UnavailableDeviceError
from millstream.gpu_offload.device_choice import open_device
from millstream.gpu_offload.device_service import DeviceService
from millstream.gpu_offload.protocol import UNAVAILABLE_EXIT_CODE, DeviceNews
from millstream.processor.errors import SettingsError
from millstream.processor.event_log import configure_logging
from millstream.processor.event_loop import new_event_loop
from millstream.processor.parent import die, die_with_parent

_BACKLOG: Final = 64
_SWITCH_S: Final = 0.0005


async def serve(device: str, path: Path, parent: socket.socket) -> int:
    """Open the device and serve it until the parent is gone; answers the exit code where there is no device."""
    try:
        backend = open_device(device)
    except (UnavailableDeviceError, SettingsError) as error:
        _tell(parent, DeviceNews(False, str(error)))
        return UNAVAILABLE_EXIT_CODE
    listening = _listen(path)
    _tell(parent, DeviceNews(True, backend.description))
    asyncio.get_running_loop().add_reader(parent, _end_with_parent, parent)
    await DeviceService(backend).serve(listening)
    return 0


def _tell(parent: socket.socket, news: DeviceNews) -> None:
    with contextlib.suppress(OSError):
        parent.sendall(msgspec.json.encode(news) + b"\n")


def _end_with_parent(parent: socket.socket) -> None:
    if not parent.recv(1):
        die()


def _listen(path: Path) -> socket.socket:
    # One that was killed has left its socket behind.
    path.unlink(missing_ok=True)
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(str(path))
    listening.listen(_BACKLOG)
    listening.setblocking(False)
    return listening


def main(arguments: list[str]) -> int:
    """Serve as the arguments say; answers the exit code."""
    device, path, descriptor, parent, level = arguments
    die_with_parent(int(parent))
    # Ctrl-C reaches every process of the terminal; the parent alone decides what it means.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    # A stage that is warming up in a thread is not to hold back the batches of others for longer.
    sys.setswitchinterval(_SWITCH_S)
    configure_logging(level)
    end = socket.socket(fileno=int(descriptor))
    end.set_inheritable(False)
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(serve(device, Path(path), end))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
