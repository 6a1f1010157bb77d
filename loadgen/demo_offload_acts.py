"""What happens in `millstream demo --offload`: acts that go on until what each shows was seen, within a bound."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from millstream.loadgen.demo_offload_watch import Seen


@dataclass(frozen=True, slots=True)
class Act:
    """`is_busy`: so many events that the device is worth its price. `kills`: the device is killed when it begins.
    `until` says whether what it is for was seen, which may take `within_s`; then it is shown a little longer. What is
    not seen in an act that `can_fail` is no fault: where a machine does other work, a device may be measured to be
    slower than it is."""

    title: str
    is_busy: bool
    until: Callable[[Seen], bool]
    within_s: float
    kills: bool = False
    can_fail: bool = False


# A device's process starts, warms up and shows by shadow runs that it works: on a machine with other work that takes
# its time, and after trouble a cool-down of half a minute goes before it.
_START_S: Final = 60.0
_COOL_DOWN_S: Final = 120.0
_AGAIN_S: Final = 15.0

ACTS: Final = (
    Act("a quiet load; the CPU is measured", False, lambda seen: seen.records.get("cpu", 0) > 0, _START_S),
    Act(
        "a busy load; is a device worth its price?",
        True,
        lambda seen: seen.runs_on == "gpu" and seen.records.get("gpu", 0) > 0,
        _START_S,
    ),
    Act(
        "the device is killed in the middle of a batch",
        True,
        lambda seen: seen.runs_on == "cpu" and sum(seen.fallbacks.values()) > 0,
        _START_S,
        kills=True,
    ),
    Act(
        "a quiet load; the device has to show that it works",
        False,
        lambda seen: seen.state == "ready",
        _COOL_DOWN_S,
    ),
    Act("a busy load again", True, lambda seen: seen.runs_on == "gpu", _AGAIN_S, can_fail=True),
    Act("a quiet load again", False, lambda seen: seen.runs_on == "cpu", _AGAIN_S, can_fail=True),
)


class Director:
    """Goes through the acts. `now` is seconds on any one clock; `show_s` is how long what was seen is shown."""

    def __init__(self, now: float, show_s: float, acts: Sequence[Act] = ACTS) -> None:
        self._acts = acts
        self._show_s = show_s
        self._number = 0
        self._begun = now
        self._seen_at: float | None = None
        self.not_seen: str | None = None
        """The act in which what was to be seen was not seen in time; it is the last one."""

    @property
    def act(self) -> Act | None:
        """The one that is played; None after the last."""
        return self._acts[self._number] if self._number < len(self._acts) else None

    def go_on(self, now: float, seen: Seen) -> bool:
        """Whether another act, or none, is played from now on."""
        act = self.act
        if act is None:
            return False
        if self._seen_at is None and act.until(seen):
            self._seen_at = now
        if self._seen_at is not None and now - self._seen_at >= self._show_s and act.until(seen):
            # It still is so: the next act builds on it.
            self._number += 1
        elif now - self._begun < act.within_s + (self._show_s if self._seen_at is not None else 0.0):
            return False
        elif act.can_fail:
            self._number += 1
        else:
            self.not_seen = act.title
            self._number = len(self._acts)
        self._begun, self._seen_at = now, None
        return True
