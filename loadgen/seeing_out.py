"""A load that is sent while a judge watches, followed to its end: for the demo and the load test."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol, TypeVar

from millstream.loadgen.companion import Companion
from millstream.loadgen.produce import SendProgress, SendReport
from millstream.loadgen.verify import JudgeProgress
from millstream.processor.errors import UnavailableError

T = TypeVar("T")


class Attended(Protocol):
    """A node or several, as whoever waits for them looks after them."""

    def check(self) -> None:
        """Raises UnavailableError where one has ended by itself."""

    def log_end(self) -> str:
        """The end of what they have logged."""


@dataclass(frozen=True, slots=True)
class Standing:
    """How far both are. `seen` counts outputs, those from before the load included; `phase` is the judge's."""

    is_sending: bool
    sent: int
    seen: int
    phase: str


def see_out(
    generator: Companion[SendProgress, SendReport],
    court: Companion[JudgeProgress, T],
    attended: Attended,
    *,
    within_s: float,
    tick_s: float,
    on_tick: Callable[[Standing], None],
) -> tuple[SendReport, T]:
    """Wait for both, and call `on_tick` on the way. Raises UnavailableError where that takes longer than `within_s`,
    with the end of the nodes' logs, or where one of the parts fails."""
    deadline = time.monotonic() + within_s
    sending, verdict = None, None
    while sending is None or verdict is None:
        if sending is None:
            sending = generator.listen(tick_s)
        verdict = court.listen(tick_s if sending is not None else 0.0)
        attended.check()
        on_tick(_standing(generator, court, sending))
        if time.monotonic() > deadline:
            raise UnavailableError(f"no verdict in {within_s:.0f} s; the node's log ends with:\n{attended.log_end()}")
    return sending, verdict


def _standing(
    generator: Companion[SendProgress, SendReport], court: Companion[JudgeProgress, T], sending: SendReport | None
) -> Standing:
    progress = court.progress
    sent = 0 if generator.progress is None else generator.progress.sent
    return Standing(
        is_sending=sending is None,
        sent=sent if sending is None else sending.events,
        seen=0 if progress is None else progress.outputs,
        phase="to be seated" if progress is None else progress.phase,
    )
