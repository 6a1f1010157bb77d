"""What a profile says: where a worker's time goes, what bounds the pipeline, and whether a GPU could pay."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, TypeAlias

import msgspec

from millstream.gpu_offload.prospects import Prospects
from millstream.gpu_offload.words import quantity, seconds

Kind: TypeAlias = Literal["input", "decode", "compute", "output", "broker"]


class Part(msgspec.Struct, frozen=True):
    """A part of the way of an event through a worker, in seconds an event."""

    name: str
    kind: Kind
    seconds: float


class SizeRow(msgspec.Struct, frozen=True):
    """An offload stage's batches of one size on the CPU, in seconds; `compute_p50_s` is in the function."""

    records: int
    p50_s: float
    p99_s: float
    compute_p50_s: float


class StageProfile(msgspec.Struct, frozen=True):
    """An offload stage: what its batches take by size, and its prospects."""

    prospects: Prospects
    sizes: list[SizeRow]


class Profile(msgspec.Struct, frozen=True):
    """`parts` in the order of the way. The brokers' is how long another client took to read, where they were asked."""

    pipeline: str
    sample: str
    records: int
    parts: list[Part]
    stages: list[StageProfile]

    @property
    def worker_s(self) -> float:
        """Seconds of a worker's core for an event."""
        return sum(part.seconds for part in self.parts if part.kind != "broker")

    def bound(self) -> tuple[Kind, float]:
        """The kind of parts that takes the most, and its seconds an event."""
        sums: dict[Kind, float] = {}
        for part in self.parts:
            sums[part.kind] = sums.get(part.kind, 0.0) + part.seconds
        kind = max(sums, key=lambda one: sums[one])
        return kind, sums[kind]


def as_text(profile: Profile) -> str:
    """The profile for people."""
    total = profile.worker_s
    kind, most = profile.bound()
    lines = [
        f"Pipeline {profile.pipeline!r}, batches of {profile.records} records: {profile.sample}",
        "",
        f"  {'part':<44}{'kind':<10}{'per event':>12}{'share':>8}",
    ]
    for part in profile.parts:
        share = f"{part.seconds / total:>8.0%}" if part.kind != "broker" else f"{'-':>8}"
        lines.append(f"  {part.name[:43]:<44}{part.kind:<10}{seconds(part.seconds):>12}{share}")
    lines += [
        f"  {'one core':<54}{seconds(total):>12}{quantity(1 / total) + ' events/s':>20}",
        "",
        f"It is bound by {kind}: {seconds(most)} an event.",
    ]
    for stage in profile.stages:
        lines += ["", *_stage(stage)]
    if not profile.stages:
        lines += ["", "There is no offload stage in it, so nothing of it could run on a GPU."]
    return "\n".join(lines) + "\n"


def _stage(stage: StageProfile) -> Sequence[str]:
    found = stage.prospects
    rows = [
        f"  {row.records:>8}{seconds(row.p50_s):>12}{seconds(row.p99_s):>12}{seconds(row.compute_p50_s):>12}"
        f"{'over the budget' if row.p99_s > found.budget_s else '':>18}"
        for row in stage.sizes
    ]
    head = (
        f"Stage {found.stage!r} on the CPU, budget {seconds(found.budget_s)}: a batch takes {seconds(found.fixed_s)} "
        f"+ {seconds(found.per_event_s)} an event, of it {seconds(found.function_fixed_s)} + "
        f"{seconds(found.function_per_event_s)} in the function"
    )
    return [
        head,
        f"  {'records':>8}{'p50':>12}{'p99':>12}{'function':>12}",
        *rows,
        f"Could a GPU pay? {found.verdict}",
        "No GPU was measured here: its floor is taken to be 60 µs a batch.",
    ]
