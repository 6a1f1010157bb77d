"""The demo of several nodes: what goes together, when a node is killed, and what is told of it."""

from __future__ import annotations

import argparse
import io
from collections.abc import Sequence
from dataclasses import replace
from typing import cast

import numpy as np
import pytest
from rich.console import Console

from millstream.connectors.kafka.onlooker import Sight
from millstream.loadgen import demo_command
from millstream.loadgen.arrival_log import ArrivalLog
from millstream.loadgen.demo import DemoProgress, DemoSettings, Trouble
from millstream.loadgen.demo_nodes import (
    WINDOW_S,
    DemoNodes,
    NodeKiller,
    Takeover,
    await_shares,
    is_shared,
    windows_fill_in_s,
)
from millstream.loadgen.demo_screen import Screen, Throughput, nodes_table, takeover_table
from millstream.loadgen.moments import Moment, Strike
from millstream.loadgen.node_process import NodeProcess
from millstream.loadgen.onlooking import Onlooking
from millstream.processor.errors import SettingsError, UnavailableError
from millstream.processor.ledger_story import Event, LedgerStory
from millstream.processor.status_view import NodeRow, ShardRow, StatusView, VerdictRow

NAMES = ("node-1", "node-2", "node-3")
KILLED_S = 5000.0


def settings_of(*arguments: str) -> DemoSettings:
    parser = argparse.ArgumentParser()
    demo_command.configure(parser)
    return demo_command.settings_from(parser.parse_args(arguments))


def test_without_arguments_it_is_the_quick_one_on_a_single_node() -> None:
    settings = settings_of()
    assert settings == DemoSettings()
    assert (settings.nodes, settings.seconds, settings.shards) == (1, 10.0, None)


def test_several_nodes_bring_what_goes_with_them_unless_told_otherwise() -> None:
    settings = settings_of("--nodes", "3", "--kill-node")
    assert (settings.trouble, settings.workers, settings.node_names) == (Trouble.KILL_NODE, 1, NAMES)
    assert settings.shards == settings.partitions >= 6
    assert settings.seconds > WINDOW_S
    assert settings_of("--nodes", "10").shards == 20
    assert settings_of("--nodes", "3").seconds == DemoSettings().seconds
    told = settings_of("--nodes", "3", "--kill-node", "--seconds", "60", "--workers", "2", "--partitions", "4")
    assert (told.seconds, told.workers, told.shards) == (60.0, 2, 4)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--kill-node"], "nodes is 1: nobody could take over; give --nodes 3"),
        (["--nodes", "2", "--kill"], "--kill is for a single node, and nodes is 2; give --kill-node"),
        (["--nodes", "2", "--kill", "--kill-node"], "give one of them"),
        (["--nodes", "0"], "nodes is 0; give 1 to 16"),
        (["--nodes", "17"], "nodes is 17; give 1 to 16"),
        (["--nodes", "4", "--partitions", "3"], "partitions is 3 and nodes is 4"),
        (["--nodes", "2", "--kill-node", "--seconds", "5"], "seconds is 5: .* give --seconds 12 or more"),
        (["--seed", "-1"], "seed is -1"),
    ],
)
def test_what_does_not_go_together_is_told_with_the_remedy(arguments: Sequence[str], told: str) -> None:
    with pytest.raises(SettingsError, match=told):
        settings_of(*arguments)


def view(since_s: float, verdicts: tuple[VerdictRow, ...] = ()) -> StatusView:
    dead = {verdict.node for verdict in verdicts}
    nodes = tuple(
        NodeRow(f"{name}-0f", name, "", (), "in", since_s, 20.0, 1, 2) for name in NAMES if f"{name}-0f" not in dead
    )
    shards = tuple(
        ShardRow(n, (f"in-{n}",), "owned", f"node-{n % 3 + 1}-0f/0.1", None, f"node-{(n + 1) % 3 + 1}-0f/0.1", 1)
        for n in range(6)
    )
    return StatusView(9, nodes, (), shards, verdicts, ())


def sight(since_s: float = 60.0, *, dead: bool = False) -> Sight:
    verdicts = (VerdictRow("node-3-0f", "node-1-0f", 291.2, 285.0, 220, 0.1),) if dead else ()
    story = LedgerStory()
    if dead:
        at_ms = round(KILLED_S * 1000) + 270
        story.events.append(Event(40, at_ms, "found dead", "node-3-0f by node-1-0f: silent for 291 ms"))
        story.events.append(Event(40, at_ms, "taken over", "shard 2 by node-1-0f/0.1 from node-3-0f/0.1"))
        story.events.append(Event(41, at_ms, "taken over", "shard 9 of another matter"))
    return Sight(view(since_s, verdicts), {}, story, None)


class Nodes(DemoNodes):
    """Nothing runs, and nothing dies."""

    def __init__(self) -> None:
        self.killed: list[str] = []

    def kill(self, name: str) -> Strike:
        self.killed.append(name)
        return Strike("kill", name, Moment(1.0, KILLED_S), Moment(1.001, KILLED_S + 0.001))

    def check(self) -> None:
        pass

    def log_end(self) -> str:
        return "last words"


def killer() -> tuple[NodeKiller, Nodes]:
    nodes = Nodes()
    return NodeKiller(nodes, "node-3", events_before=100), nodes


def test_a_node_is_killed_once_under_load_and_when_its_beats_are_known() -> None:
    strikes, nodes = killer()
    strikes.act(sight(since_s=WINDOW_S), 1000, is_sending=True)
    strikes.act(sight(), 99, is_sending=True)
    assert nodes.killed == []
    for _ in range(2):
        strikes.act(sight(), 100, is_sending=True)
    assert nodes.killed == ["node-3"]
    assert strikes.notes == ["node-3 killed (SIGKILL), which had shards 2, 5"]


def test_a_load_that_is_over_too_early_is_said_to_be_too_short() -> None:
    strikes, _ = killer()
    with pytest.raises(UnavailableError, match="give more --seconds"):
        strikes.act(sight(since_s=1.0), 1000, is_sending=False)


def test_what_the_others_and_the_reader_saw_is_told_in_milliseconds_from_the_kill() -> None:
    strikes, _ = killer()
    assert strikes.takeover(ArrivalLog()) is None
    for seen in (sight(), sight(), sight(dead=True), sight(dead=True)):
        strikes.act(seen, 100, is_sending=True)
    assert strikes.notes[1:] == [
        "node-3 found dead by node-1 270 ms after the kill: silent for 291 ms, allowed were 285 ms",
        "taken over: shard 2 by node-1-0f/0.1 from node-3-0f/0.1",
    ]
    log = ArrivalLog()
    killed_us = int(KILLED_S * 1e6)
    two, five = np.array([2], np.int64), np.array([5], np.int64)
    log.note(two, two * 0 + killed_us - 5, killed_us + 3_000)
    log.note(two, two * 0 + killed_us + 5, killed_us + 320_000)
    half = strikes.takeover(log)
    assert half is not None
    assert half.output_ms == {"in-2": 320.0, "in-5": None}
    assert not half.is_complete
    assert half.longest_ms is None
    log.note(five, five * 0 + killed_us + 9, killed_us + 330_500)
    whole = strikes.takeover(log)
    assert whole is not None
    assert whole.is_complete
    assert whole.as_json() == {
        "node": "node-3",
        "shards": [2, 5],
        "found_dead_by": "node-1",
        "silence_ms": 291.2,
        "threshold_ms": 285.0,
        "found_dead_ms": 270.0,
        "output_ms": {"in-2": 320.0, "in-5": 330.5},
        "takeover_ms_max": 330.5,
    }
    assert {"found dead by node-1", "330 ms"} <= set(cells(takeover_table(whole)))
    assert "not seen" in " ".join(cells(takeover_table(half)))


def test_a_node_that_nobody_found_dead_was_not_taken_over() -> None:
    takeover = Takeover("node-3", (2,), None, None, None, None, {"in-2": 300.0})
    assert not takeover.is_complete
    assert "never" in " ".join(cells(takeover_table(takeover)))


def test_shards_are_shared_when_each_node_has_some_and_none_moves() -> None:
    assert is_shared(view(0.0), NAMES)
    assert not is_shared(view(0.0), (*NAMES, "node-4"))
    moving = view(0.0)
    first, *others = moving.shards
    assert not is_shared(replace(moving, shards=(replace(first, state="moving"), *others)), NAMES)
    idle, *rest = moving.nodes
    assert not is_shared(replace(moving, nodes=(replace(idle, shards=0), *rest)), NAMES)


def test_shards_that_are_never_shared_are_told_with_the_nodes_logs(monkeypatch: pytest.MonkeyPatch) -> None:
    class Clock:
        now = 0.0

        def monotonic(self) -> float:
            return self.now

        def sleep(self, seconds: float) -> None:
            self.now += seconds

    class Nothing:
        sight = None

        def check(self) -> None:
            pass

    monkeypatch.setattr("millstream.loadgen.demo_nodes.time", Clock())
    told: list[Sight | None] = []
    with pytest.raises(UnavailableError, match=r"not shared among node-1, node-2, node-3 within 60 s; .*\nlast words"):
        await_shares(Nodes(), NAMES, cast("Onlooking", Nothing()), told.append)
    assert told


def test_the_youngest_node_decides_when_the_windows_are_full() -> None:
    young = view(60.0)
    first, *others = young.nodes
    young = replace(young, nodes=(replace(first, since_s=2.0), *others))
    assert WINDOW_S - 2.0 < windows_fill_in_s(young) < WINDOW_S
    assert windows_fill_in_s(view(60.0)) == 0.0


def test_a_node_that_was_killed_is_not_missed_but_any_other_is(monkeypatch: pytest.MonkeyPatch) -> None:
    class Ended:
        pid = 1

        def check(self) -> None:
            raise UnavailableError("the node ended by itself")

        def log_end(self) -> str:
            return "its log"

    nodes = DemoNodes({"a": cast("NodeProcess", Ended()), "b": cast("NodeProcess", Ended())})
    monkeypatch.setattr("millstream.loadgen.node_faults.kill", lambda pid: pid)
    nodes.kill("a")
    with pytest.raises(UnavailableError, match="ended by itself"):
        nodes.check()
    nodes.kill("b")
    nodes.check()
    assert nodes.log_end() == "a:\nits log\nb:\nits log"


def test_throughput_is_of_the_last_bars() -> None:
    throughput = Throughput()
    for step in range(11):
        throughput.note(step * 0.1, step * 100)
    assert throughput.now == pytest.approx(1000.0)
    for step in range(10):
        throughput.note(1.1 + step * 0.1, 1000)
    assert throughput.rates[-1] == 0.0
    assert throughput.bars()[0] == "█"
    assert throughput.bars()[-1] == " "
    # The warm-up's count may be higher than the first of the load's.
    throughput.note(3.0, 5)
    assert throughput.rates[-1] == 0.0


def test_without_a_terminal_each_phase_and_each_event_is_a_line() -> None:
    out = io.StringIO()
    with Screen(Console(file=out, width=60), DemoSettings()) as screen:
        screen.announce("This takes about 25 s.")
        for at in (DemoProgress("a"), DemoProgress("a"), DemoProgress("b", notes=("x killed",)), DemoProgress("b")):
            screen.show(at)
    assert out.getvalue().splitlines() == ["This takes about 25 s.", "waiting for a", "x killed", "waiting for b"]


def test_with_a_terminal_nodes_their_shards_and_what_has_happened_are_seen() -> None:
    out = io.StringIO()
    console = Console(file=out, width=120, height=50, force_terminal=True, color_system=None)
    with Screen(console, DemoSettings()) as screen:
        screen.show(DemoProgress("the others to take over", 10, 5, sight(dead=True), ("node-3 killed (SIGKILL)",)))
    text = out.getvalue()
    assert {"the others to take over", "node-3-0f", "dead", "found dead", "node-3 killed (SIGKILL)"} <= {
        word
        for word in ("the others to take over", "node-3-0f", "dead", "found dead", "node-3 killed (SIGKILL)")
        if word in text
    }
    assert {"node-1", "0, 3"} <= set(cells(nodes_table(sight())))


def cells(table: object) -> list[str]:
    """What stands in a table, cell by cell."""
    return [str(cell) for column in getattr(table, "columns") for cell in column.cells]  # noqa: B009
