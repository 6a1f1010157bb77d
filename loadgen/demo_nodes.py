"""The demo's nodes: several on this machine, one of which is killed like a machine that loses power."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from types import TracebackType
from typing import Final, Self

from millstream.connectors.kafka.onlooker import Sight
from millstream.loadgen import node_faults
from millstream.loadgen.arrival_log import ArrivalLog
from millstream.loadgen.moments import Strike
from millstream.loadgen.node_process import NodeProcess
from millstream.loadgen.onlooking import Onlooking
from millstream.processor.errors import UnavailableError
from millstream.processor.status_view import NodeRow, StatusView
from millstream.processor.timings import Timings

# A detector that has heard fewer beats of a node than its window holds gives it a whole second.
WINDOW_S: Final = Timings().window * Timings().beat_interval_s
_WINDOW_SPARE_S: Final = 1.5
_SHARE_S_MAX: Final = 60.0
_US_PER_S: Final = 1_000_000
_MS_PER_S: Final = 1000.0


class DemoNodes:
    """Nodes by name. A context manager: entering starts them all, leaving ends those that are left."""

    def __init__(self, nodes: dict[str, NodeProcess]) -> None:
        self._nodes = nodes
        self._stack = ExitStack()
        self._killed: set[str] = set()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            for node in self._nodes.values():
                stack.enter_context(node)
            self._stack = stack.pop_all()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stack.__exit__(kind, error, trace)

    def __getitem__(self, name: str) -> NodeProcess:
        return self._nodes[name]

    def check(self) -> None:
        """Raises UnavailableError where a node that was not killed has ended."""
        for name, node in self._nodes.items():
            if name not in self._killed:
                node.check()

    def log_end(self) -> str:
        """The last lines of each log."""
        if len(self._nodes) == 1:
            return "".join(node.log_end() for node in self._nodes.values())
        return "\n".join(f"{name}:\n{node.log_end()}" for name, node in self._nodes.items())

    def kill(self, name: str) -> Strike:
        """SIGKILL to all of a node at once. Raises UnavailableError where it is gone already, or this is not Linux."""
        pid = self._nodes[name].pid
        if pid is None:
            raise UnavailableError(f"{name} does not run; there is nothing to kill")
        self._killed.add(name)
        return node_faults.kill(pid)


def await_shares(
    nodes: DemoNodes, names: Sequence[str], onlooking: Onlooking, tell: Callable[[Sight | None], None]
) -> None:
    """Until every node has shards and every shard has its owner. Raises UnavailableError after a minute."""
    deadline = time.monotonic() + _SHARE_S_MAX
    while (sight := onlooking.sight) is None or not is_shared(sight.view, names):
        tell(sight)
        nodes.check()
        onlooking.check()
        time.sleep(0.1)
        if time.monotonic() > deadline:
            raise UnavailableError(
                f"the shards were not shared among {', '.join(names)} within {_SHARE_S_MAX:.0f} s; "
                f"the nodes' logs end with:\n{nodes.log_end()}"
            )


def is_shared(view: StatusView, names: Sequence[str]) -> bool:
    """Whether each of these nodes is in and has shards, and no shard moves."""
    having = {row.name for row in view.nodes if row.state == "in" and row.shards}
    return having >= set(names) and all(row.state == "owned" for row in view.shards)


def windows_fill_in_s(view: StatusView) -> float:
    """For how long the youngest node is still a newcomer to the others' detectors."""
    ages_s = [row.since_s or 0.0 for row in view.nodes]
    return max(0.0, WINDOW_S + _WINDOW_SPARE_S - min(ages_s, default=0.0))


@dataclass(frozen=True, slots=True)
class Takeover:
    """What became of a node's shards after its death. Milliseconds count from the moment before the kill.

    `found_ms` is when another node wrote the verdict; `output_ms` when the independent reader had the first committed
    output of each partition that it had owned, of an event that left after the kill, or None where it had none.
    """

    node: str
    shards: tuple[int, ...]
    by: str | None
    silence_ms: float | None
    threshold_ms: float | None
    found_ms: float | None
    output_ms: dict[str, float | None]

    @property
    def is_complete(self) -> bool:
        """Whether the node was found dead, and all of its partitions have output again."""
        return self.by is not None and all(ms is not None for ms in self.output_ms.values())

    @property
    def longest_ms(self) -> float | None:
        """How long the slowest partition took; None where one has no output, or none was owned."""
        known = [ms for ms in self.output_ms.values() if ms is not None]
        return max(known) if known and len(known) == len(self.output_ms) else None

    def as_json(self) -> dict[str, object]:
        """One object."""
        return {
            "node": self.node,
            "shards": list(self.shards),
            "found_dead_by": self.by,
            "silence_ms": _rounded(self.silence_ms),
            "threshold_ms": _rounded(self.threshold_ms),
            "found_dead_ms": _rounded(self.found_ms),
            "output_ms": {name: _rounded(ms) for name, ms in self.output_ms.items()},
            "takeover_ms_max": _rounded(self.longest_ms),
        }


@dataclass(slots=True)
class NodeKiller:
    """Kills one node when the detectors know its beats and the load flows; then looks for what the others say of it."""

    nodes: DemoNodes
    victim: str
    events_before: int
    strike: Strike | None = None
    notes: list[str] = field(default_factory=list)
    _row: NodeRow | None = None
    _shards: dict[int, tuple[str, ...]] = field(default_factory=dict)
    _found: tuple[str, float, float, float | None] | None = None

    def act(self, sight: Sight, sent: int, *, is_sending: bool) -> None:
        """Kill if it is time. Raises UnavailableError where the load is over before that."""
        if self.strike is None:
            if not is_sending:
                raise UnavailableError(
                    "all events were sent before the node could be killed under load; give more --seconds"
                )
            if sent >= self.events_before and windows_fill_in_s(sight.view) == 0.0:
                self._kill(sight.view)
        elif self._found is None:
            self._look(sight)

    def takeover(self, log: ArrivalLog) -> Takeover | None:
        """What came of it, with the arrivals that a judge has noted; None where nothing was killed."""
        if self.strike is None or self._row is None:
            return None
        killed_us = int(self.strike.ordered.wall_s * _US_PER_S)
        arrived = log.first_since(killed_us)
        output_ms = {}
        for partition in (partition for owned in self._shards.values() for partition in owned):
            # With as many partitions on either side, keyed records keep their partition's number.
            at_us = arrived.get(int(partition.rpartition("-")[2]))
            output_ms[partition] = None if at_us is None else (at_us - killed_us) / 1000
        by, silence_ms, threshold_ms, found_ms = self._found or (None, None, None, None)
        return Takeover(self.victim, tuple(self._shards), by, silence_ms, threshold_ms, found_ms, output_ms)

    def _kill(self, view: StatusView) -> None:
        self._row = next(row for row in view.nodes if row.name == self.victim)
        self._shards = {
            row.shard: row.partitions
            for row in view.shards
            if row.owner is not None and row.owner.rpartition("/")[0] == self._row.node
        }
        self.strike = self.nodes.kill(self.victim)
        self.notes.append(f"{self.victim} killed (SIGKILL), which had shards {', '.join(map(str, self._shards))}")

    def _look(self, sight: Sight) -> None:
        assert self._row is not None
        assert self.strike is not None
        verdict = next((row for row in sight.view.verdicts if row.node == self._row.node), None)
        if verdict is None:
            return
        names = {row.node: row.name for row in sight.view.nodes}
        event = next((e for e in sight.story.events if e.what == "found dead" and self._row.node in e.text), None)
        found_ms = None
        if event is not None and event.at_ms is not None:
            found_ms = event.at_ms - self.strike.ordered.wall_s * _MS_PER_S
        by = names.get(verdict.by, verdict.by)
        self._found = by, verdict.silence_ms, verdict.threshold_ms, found_ms
        after = "" if found_ms is None else f" {found_ms:.0f} ms after the kill"
        self.notes.append(
            f"{self.victim} found dead by {by}{after}: silent for {verdict.silence_ms:.0f} ms, "
            f"allowed were {verdict.threshold_ms:.0f} ms"
        )
        for told in sight.story.events:
            if told.what == "taken over" and told.offset == (None if event is None else event.offset):
                self.notes.append(f"taken over: {told.text}")


def _rounded(milliseconds: float | None) -> float | None:
    return None if milliseconds is None else round(milliseconds, 1)
