"""Ledgers as they may come to be: what nodes say in the right order, at the wrong time, twice, and never."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias, TypeVar

from hypothesis import strategies as st

from millstream.processor.ledger import (
    CreatedRecord,
    DeadRecord,
    JoinRecord,
    LeaveRecord,
    LeavingRecord,
    LedgerRecord,
    ReadingRecord,
    ReleasedRecord,
    SeizedRecord,
    Stalled,
    StartedRecord,
    WorkerDownRecord,
    WorkerUpRecord,
    encode,
)
from millstream.processor.ledger_reader import snapshot
from millstream.processor.membership import Membership, WorkerId, apply

Step: TypeAlias = tuple[str, int]
Value = TypeVar("Value")

NODES = [f"{name}-{life}" for name in "abcde" for life in range(3)]
STRANGER = WorkerId("stranger-0", 0, 0)
KINDS = [
    *("join", "up", "up", "down", "leaving", "leaving-worker", "leave", "dead"),
    *("released", "released", "let-go", "let-go", "let-go", "seized"),
    *("created", "reading", "started", "copy", "snapshot"),
]


@dataclass
class History:
    """The records of a ledger, and the membership before the first and after each of them."""

    records: list[LedgerRecord] = field(default_factory=list)
    states: list[Membership] = field(default_factory=lambda: [Membership()])

    @property
    def now(self) -> Membership:
        return self.states[-1]

    def add(self, *records: LedgerRecord) -> Membership:
        for record in records:
            self.states.append(apply(self.now, len(self.records), record))
            self.records.append(record)
        return self.now

    def entries(self, start: int = 0) -> list[tuple[int, bytes]]:
        return [(offset, encode(record)) for offset, record in enumerate(self.records) if offset >= start]


@st.composite
def histories(draw: st.DrawFn, min_size: int = 0, max_size: int = 60) -> History:
    """Any history. Most of what is said makes sense when it is said, and some does not."""
    step = st.tuples(st.sampled_from(KINDS), st.integers(0, 12**3 - 1))
    steps = draw(st.lists(step, min_size=min_size, max_size=max_size))
    history = History()
    if draw(st.booleans()):
        history.add(CreatedRecord(draw(st.integers(1, 12))))
        history.add(*(record for node in NODES[::3] for record in (join(node), WorkerUpRecord(node, 0, 0))))
    for step in steps:
        if (record := _record(history, step)) is not None:
            history.add(record)
    return history


def join(node: str) -> JoinRecord:
    """A node whose zone is one of three, by its name."""
    return JoinRecord(node, node.split("-")[0], f"zone-{ord(node[0]) % 3}")


def released(membership: Membership, shard: int, since: int | None = None) -> ReleasedRecord:
    """The shard's holder lets it go."""
    holder = membership.holders.get(shard, STRANGER)
    began = membership.since.get(shard, 0) if since is None else since
    return ReleasedRecord(shard, holder.node, holder.worker, holder.incarnation, began)


def seized(membership: Membership, shard: int) -> SeizedRecord:
    """The shard's planned owner takes it."""
    taker = membership.planned.get(shard, STRANGER)
    return SeizedRecord(shard, taker.node, taker.worker, taker.incarnation, membership.since.get(shard, 0))


def moving(membership: Membership) -> list[int]:
    """The shards that are on their way to another worker."""
    return [shard for shard, owner in membership.holders.items() if membership.planned.get(shard) != owner]


def _pick(choices: Sequence[Value], number: int, otherwise: Value) -> Value:
    return choices[number % len(choices)] if choices else otherwise


def _record(history: History, step: Step) -> LedgerRecord | None:
    kind, number = step
    a, b, c = number // 144, number // 12 % 12, number % 12
    now = history.now
    worker = _pick(sorted(now.workers), a, STRANGER)
    node = _pick(sorted(now.nodes), a, STRANGER.node)
    known = now.nodes[node].incarnations if node in now.nodes else {}
    match kind:
        case "created":
            return CreatedRecord(a + 1)
        case "reading":
            return ReadingRecord(f"topic-{a % 3}", b + 1)
        case "started":
            return StartedRecord(f"topic-{a % 3}", b)
        case "join":
            return join(NODES[(a * 12 + b) % len(NODES)])
        case "up":
            return WorkerUpRecord(node, b % 2, max(0, known.get(b % 2, -1) + 1 - (c == 0)), c != 1)
        case "down":
            return WorkerDownRecord(worker.node, worker.worker, worker.incarnation + (c == 0), "exit 1", _stalls(b, c))
        case "leaving":
            return LeavingRecord(node)
        case "leaving-worker":
            return LeavingRecord(worker.node, worker.worker, worker.incarnation - (c == 0 < worker.incarnation))
        case "leave":
            return LeaveRecord(node)
        case "dead":
            return DeadRecord(node, _pick(sorted(now.nodes), b, node), 281.5, 250.0, b)
        case "released":
            return released(now, b, None if c else 0)
        case "let-go":
            return released(now, _pick(moving(now), b, b))
        case "seized":
            return seized(now, _pick(moving(now), b, b))
        case "snapshot":
            earlier = history.states[max(1, len(history.states) - 1 - c) :][:1]
            return snapshot(earlier[0]) if earlier else None
        case _:
            return history.records[-1 - (a * 12 + b) % len(history.records)] if history.records else None


def _stalls(shard: int, number: int) -> list[Stalled]:
    return [Stalled(shard, "parse", "topic-0", shard, number, number + 3)] if number > 5 else []
