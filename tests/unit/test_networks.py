"""Networks that are cut: what is lost is lost silently, what is not goes on, and nothing is left behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from millstream.loadgen.networks import Cut, Network, remove_stale, why_not
from millstream.processor.errors import UnavailableError

needs_networks = pytest.mark.skipif(why_not() is not None, reason=why_not() or "")
# What is not lost arrives in microseconds.
SOON_S, LOST_S = 10.0, 0.1


class Pair:
    """A socket on each side, connected with each other; datagrams, which TCP's memory cannot help."""

    def __init__(self, network: Network) -> None:
        self.outside = bound(network.host_address)
        self.inside = network.call(lambda: bound(network.node_address))
        self.outside.connect(self.inside.getsockname())
        self.inside.connect(self.outside.getsockname())

    def passes(self, *, outward: bool) -> bool:
        sender, receiver = (self.inside, self.outside) if outward else (self.outside, self.inside)
        sender.send(b"x")
        receiver.settimeout(LOST_S)
        try:
            return receiver.recv(10) == b"x"
        except TimeoutError:
            return False


def bound(address: str) -> socket.socket:
    made = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    made.bind((address, 0))
    return made


@pytest.fixture
def network() -> Iterator[Network]:
    with Network() as made:
        yield made


@pytest.fixture
def pair(network: Network) -> Iterator[Pair]:
    made = Pair(network)
    yield made
    made.outside.close()
    made.inside.close()


@needs_networks
@pytest.mark.parametrize(
    ("cut", "out", "in_"), [(Cut.BOTH, False, False), (Cut.OUT, False, True), (Cut.IN, True, False)]
)
def test_a_cut_loses_what_it_says_until_it_is_healed(
    network: Network, pair: Pair, cut: Cut, out: bool, in_: bool
) -> None:
    assert pair.passes(outward=True)
    assert pair.passes(outward=False)
    before_s = time.monotonic()
    strike = network.cut(cut)
    assert before_s <= strike.ordered.monotonic_s <= strike.done.monotonic_s <= time.monotonic()
    assert (strike.fault, strike.target) == (f"cut {cut.value}", network.name)
    assert (pair.passes(outward=True), pair.passes(outward=False)) == (out, in_)
    network.heal()
    assert pair.passes(outward=True)
    assert pair.passes(outward=False)


@needs_networks
def test_cuts_add_up_and_healing_twice_is_no_error(network: Network, pair: Pair) -> None:
    network.cut(Cut.IN)
    network.cut(Cut.BOTH)
    network.cut(Cut.OUT)
    assert (pair.passes(outward=True), pair.passes(outward=False)) == (False, False)
    network.heal()
    network.heal()
    assert (pair.passes(outward=True), pair.passes(outward=False)) == (True, True)


@needs_networks
def test_a_connection_outlives_a_cut_that_is_healed(network: Network) -> None:
    with socket.create_server((network.host_address, 0)) as server:
        inside = network.call(lambda: socket.create_connection(server.getsockname(), SOON_S))
        outside, _ = server.accept()
        with inside, outside:
            outside.settimeout(LOST_S)
            network.cut()
            inside.sendall(b"late")
            with pytest.raises(TimeoutError):
                outside.recv(10)
            network.heal()
            outside.settimeout(SOON_S)
            assert outside.recv(10) == b"late"


@needs_networks
def test_a_command_runs_inside_and_sees_nothing_else(network: Network) -> None:
    code = "import socket; print(*sorted(name for _, name in socket.if_nameindex()))"
    found = subprocess.run(network.command([sys.executable, "-c", code]), capture_output=True, text=True, check=True)
    names = found.stdout.split()
    assert "lo" in names
    assert "eth0" not in names
    assert sum(name.startswith("ms") for name in names) == 1


@needs_networks
def test_a_process_that_is_started_from_a_call_is_inside_and_ends_with_the_network() -> None:
    with Network() as network:
        sleeper = network.call(lambda: subprocess.Popen(["sleep", "1000"]))
        assert Path(f"/proc/{sleeper.pid}/ns/net").stat().st_ino != Path("/proc/self/ns/net").stat().st_ino
    assert sleeper.wait(SOON_S) < 0
    assert not Path(f"/run/netns/{network.name}").exists()


@needs_networks
def test_what_a_program_that_died_has_left_is_taken_away() -> None:
    code = (
        "import os; from millstream.loadgen.networks import Network\n"
        "network = Network().__enter__(); print(network.name, flush=True); os._exit(1)"
    )
    died = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert died.returncode == 1, died.stderr
    left = died.stdout.strip()
    assert Path(f"/run/netns/{left}").exists()
    assert left in remove_stale()
    assert not Path(f"/run/netns/{left}").exists()
    assert all(not name.startswith(f"ms{left.split('-')[1]}x") for _, name in socket.if_nameindex())


def test_without_root_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(UnavailableError, match="run as root"):
        Network().__enter__()
