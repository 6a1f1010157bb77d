"""Networks of their own for nodes under test, which can be cut within milliseconds: both ways or one way.

    with Network() as network, ProxyThread(broker.bootstrap, host=network.host_address) as proxy:
        network.call(node.start)     # a node that reaches this machine, and the brokers behind the proxy, alone
        struck = network.cut()       # silence: nothing is refused, nothing is reset
        network.heal()

A network namespace is joined to this machine by a pair of virtual interfaces. A cut puts the kernel's `blackhole` queue
before one of them or both: packets vanish while interfaces and routes stay up, as with a switch that died far away. (To
take the interface down would tell the node at once.) Needs Linux, root, and Debian's iproute2. Nothing else: no netem,
no packet filter.
"""

from __future__ import annotations

import ctypes
import itertools
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from enum import Enum
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from millstream.loadgen.moments import Moment, Strike
from millstream.processor.errors import UnavailableError

T = TypeVar("T")

_NAMES = re.compile(r"millstream-(\d+)-\d+")
_NAMESPACES = Path("/run/netns")
_COMMAND_S = 10.0
_CLONE_NEWNET = 0x40000000
_NETS = 1 << 14
_NUMBERS = itertools.count()


class Cut(Enum):
    """What is lost, as the node sees it."""

    BOTH = "both ways"
    OUT = "what the node sends"
    IN = "what is sent to the node"


def why_not() -> str | None:
    """Why there can be no networks here, with the remedy; None where there can."""
    if sys.platform != "linux":
        return "network namespaces need Linux"
    if os.geteuid() != 0:
        return "network namespaces need root; run as root, or in a privileged container"
    if missing := [command for command in ("ip", "tc") if shutil.which(command) is None]:
        return f"network namespaces need {' and '.join(missing)}: apt-get install iproute2"
    return None


class Network:
    """One namespace with one way out. A context manager; leaving kills what still runs inside and takes it away.

    Entering raises UnavailableError where networks cannot be made, and takes away what programs that died without
    leaving have left behind.
    """

    def __init__(self) -> None:
        number = next(_NUMBERS)
        self.name = f"millstream-{os.getpid()}-{number}"
        # Names of interfaces end after 15 characters.
        self._outside, self._inside = f"ms{os.getpid()}x{number}h", f"ms{os.getpid()}x{number}n"
        net = random.SystemRandom().randrange(_NETS)
        self._base = f"10.231.{net >> 6}."
        self._last = (net & 63) * 4
        self._lost: set[Cut] = set()

    def __enter__(self) -> Self:
        if reason := why_not():
            raise UnavailableError(reason)
        remove_stale()
        try:
            self._make()
        except BaseException:
            _remove(self.name)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        _remove(self.name)

    @property
    def host_address(self) -> str:
        """This machine as the node sees it: where a proxy has to listen."""
        return f"{self._base}{self._last + 1}"

    @property
    def node_address(self) -> str:
        """The node as this machine sees it."""
        return f"{self._base}{self._last + 2}"

    def _make(self) -> None:
        _run("ip", "netns", "add", self.name)
        # Fixed hardware addresses, known to both sides: a cut then loses packets only, not also who is who.
        outside, inside = "02:4d:53:00:00:01", "02:4d:53:00:00:02"
        pair = ["address", outside, "type", "veth", "peer", "name", self._inside, "address", inside]
        _run("ip", "link", "add", self._outside, *pair, "netns", self.name)
        for place, device, ours, theirs, hardware in (
            ([], self._outside, self.host_address, self.node_address, inside),
            (["-n", self.name], self._inside, self.node_address, self.host_address, outside),
        ):
            _run("ip", *place, "address", "add", f"{ours}/30", "dev", device)
            _run("ip", *place, "link", "set", device, "up")
            known = ["neighbour", "replace", theirs, "lladdr", hardware, "dev", device, "nud", "permanent"]
            _run("ip", *place, *known)
        _run("ip", "-n", self.name, "link", "set", "lo", "up")

    def cut(self, lost: Cut = Cut.BOTH) -> Strike:
        """Nothing gets through this way any more; a cut that is there already stays. Raises UnavailableError."""
        ways: set[Cut] = {Cut.OUT, Cut.IN} if lost is Cut.BOTH else {lost}
        strike = self._each(ways - self._lost, ["replace", "root", "blackhole"], f"cut {lost.value}")
        self._lost |= ways
        return strike

    def heal(self) -> Strike:
        """Everything gets through again; TCP repeats what was lost at its next timer. Raises UnavailableError."""
        strike = self._each(self._lost, ["delete", "root"], "heal")
        self._lost.clear()
        return strike

    def _each(self, ways: set[Cut], change: Sequence[str], what: str) -> Strike:
        """Change the queues before the two interfaces, both at once."""
        action, *queue = change
        devices = {
            Cut.OUT: ["-n", self.name, "qdisc", action, "dev", self._inside],
            Cut.IN: ["qdisc", action, "dev", self._outside],
        }
        ordered = Moment.now()
        _run_all([["tc", *devices[way], *queue] for way in ways])
        return Strike(what, self.name, ordered, Moment.now())

    def command(self, command: Sequence[str]) -> list[str]:
        """The command that runs this one inside; it keeps its process id."""
        return ["nsenter", f"--net={_NAMESPACES / self.name}", *command]

    def call(self, work: Callable[[], T]) -> T:
        """Call a function inside and wait for it: processes that it starts, and sockets that it makes, are there."""

        def enter_and_work() -> T:
            with (_NAMESPACES / self.name).open() as namespace:
                if ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), _CLONE_NEWNET) != 0:
                    raise UnavailableError(f"{self.name} cannot be entered: {os.strerror(ctypes.get_errno())}")
            return work()

        # A thread can be in another network than its process; this one ends with the call.
        with ThreadPoolExecutor(1) as inside:
            return inside.submit(enter_and_work).result()


def remove_stale() -> list[str]:
    """Take away the networks of programs that have died without doing so; answers their names."""
    found = [path.name for path in _NAMESPACES.iterdir()] if _NAMESPACES.is_dir() else []
    stale = [name for name in found if (match := _NAMES.fullmatch(name)) and not Path(f"/proc/{match[1]}").exists()]
    for name in stale:
        _remove(name)
    return stale


def _remove(name: str) -> None:
    """Kill what runs inside and remove the namespace; its interfaces, and so their other ends, go with it."""
    if not (_NAMESPACES / name).exists():
        return
    for pid in _run("ip", "netns", "pids", name).split():
        try:
            os.kill(int(pid), signal.SIGKILL)
        except ProcessLookupError:
            # It ended by itself meanwhile.
            pass
    _, pid_, number = name.split("-")
    # The kernel takes interfaces along some time after the namespace; so that nobody meets them, now.
    subprocess.run(
        ["ip", "link", "delete", f"ms{pid_}x{number}h"], capture_output=True, timeout=_COMMAND_S, check=False
    )
    _run("ip", "netns", "delete", name)


def _run(*command: str) -> str:
    return _run_all([command])[0]


def _run_all(commands: Sequence[Sequence[str]]) -> list[str]:
    """Run all side by side; answers what they wrote. Raises UnavailableError where one fails."""
    running = [
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for command in commands
    ]
    outputs = [process.communicate(timeout=_COMMAND_S) for process in running]
    for process, command, (_, complaint) in zip(running, commands, outputs, strict=True):
        if process.returncode != 0:
            raise UnavailableError(f"{' '.join(command)} failed: {complaint.strip()}")
    return [output for output, _ in outputs]
