"""What is done to which frames: rules, and the book that decides by them. Pure; the time comes in.

    Rule(Delay(5.0), Way.ANSWERS, apis={Api.END_TXN})                 answers to EndTxn are held back for 5 s
    Rule(Delay(0.2), Way.REQUESTS, apis=TO_TRANSACTION_COORDINATOR)   200 ms on the way to the transaction coordinator
    Rule(Reset(), Way.REQUESTS, probability=0.02)                     2 % of all requests break their connection
    cut()                                                             both ways; cut(Way.REQUESTS) is one way
    cut(topics={"orders.beats"})                                      only requests that name this topic

A request that names several topics is struck if any of them is meant: a frame is whole or it is not there.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum

from millstream.loadgen.kafka_frames import (
    NAMING_TOPICS,
    NAMING_TRANSACTIONAL_ID,
    Api,
    Request,
    topics,
    transactional_id,
)
from millstream.loadgen.moments import Moment, Strike
from millstream.processor.errors import SettingsError


class Way(Enum):
    """Which frames of a connection are meant."""

    REQUESTS = "requests"
    ANSWERS = "answers"


@dataclass(frozen=True, slots=True)
class Delay:
    """Held back for so many seconds after it came, and all behind it on its connection with it."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Hold:
    """Held back until the rule is lifted, and all behind it on its connection with it."""


@dataclass(frozen=True, slots=True)
class Swallow:
    """Never delivered, nor anything behind it: TCP knows no holes.

    Lifting the rule resets the connections that it struck.
    """


@dataclass(frozen=True, slots=True)
class Reset:
    """The connection is reset at once, on both sides."""


Action = Delay | Hold | Swallow | Reset


@dataclass(frozen=True, slots=True)
class Rule:
    """What happens to frames that fit; None fits all. An answer fits as its request does.

    `times` bounds how many frames are struck. Raises SettingsError where nothing could ever fit.
    """

    action: Action
    way: Way
    apis: AbstractSet[int] | None = None
    topics: AbstractSet[str] | None = None
    transactional_ids: AbstractSet[str] | None = None
    brokers: AbstractSet[int] | None = None
    probability: float = 1.0
    times: int | None = None

    def __post_init__(self) -> None:
        mistakes = []
        if not 0 < self.probability <= 1:
            mistakes.append(f"probability {self.probability} is not above 0 and at most 1")
        if self.times is not None and self.times < 1:
            mistakes.append(f"times {self.times} is below 1; leave the rule out instead")
        if isinstance(self.action, Delay) and not 0 < self.action.seconds < math.inf:
            mistakes.append(f"a delay of {self.action.seconds} s is not above 0 and finite; Hold() has no end")
        mistakes += _cannot_name(self.apis, self.topics, NAMING_TOPICS, "topics")
        mistakes += _cannot_name(self.apis, self.transactional_ids, NAMING_TRANSACTIONAL_ID, "transactional_ids")
        if mistakes:
            raise SettingsError("the fault's rule", mistakes)

    def fits_header(self, way: Way, api: int, broker: int) -> bool:
        """Whether a frame may fit, as far as its header tells."""
        return (
            way is self.way
            and (self.apis is None or api in self.apis)
            and (self.topics is None or api in NAMING_TOPICS)
            and (self.transactional_ids is None or api in NAMING_TRANSACTIONAL_ID)
            and (self.brokers is None or broker in self.brokers)
        )


def _cannot_name(
    apis: AbstractSet[int] | None, named: AbstractSet[str] | None, naming: AbstractSet[Api], what: str
) -> list[str]:
    if named is None or apis is None or apis <= naming:
        return []
    others = ", ".join(str(int(api)) for api in sorted(apis - naming))
    return [f"requests {others} are not looked into for {what}; leave them out, or leave out {what}"]


def cut(
    *ways: Way,
    topics: AbstractSet[str] | None = None,
    apis: AbstractSet[int] | None = None,
    brokers: AbstractSet[int] | None = None,
) -> tuple[Rule, ...]:
    """Nothing gets through any more, both ways unless some are given."""
    return tuple(Rule(Swallow(), way, apis=apis, topics=topics, brokers=brokers) for way in ways or tuple(Way))


@dataclass(eq=False)
class Fault:
    """Some rules in force, and what they did so far."""

    rules: tuple[Rule, ...]
    began: Strike
    ended: Strike | None = None
    hits: int = 0
    first_hit: Moment | None = None
    left: list[float] = field(init=False)

    def __post_init__(self) -> None:
        self.left = [math.inf if rule.times is None else rule.times for rule in self.rules]

    @property
    def is_in_force(self) -> bool:
        """False once it was lifted."""
        return self.ended is None


@dataclass(eq=False, slots=True)
class Frame:
    """One request on its way, or the answer to `request`. `arrived_s` is monotonic.

    What was diced about it is remembered, so that it may be decided about again after a wait.
    """

    way: Way
    request: Request
    broker: int
    arrived_s: float
    is_struck: dict[tuple[Fault, int], bool] = field(default_factory=dict)
    topics: frozenset[str] | None = None


@dataclass(frozen=True, slots=True)
class Wait:
    """Decide again at this monotonic time, or when the rules have changed."""

    until_s: float


@dataclass(frozen=True, slots=True)
class Struck:
    """What becomes of the frame, and by which fault."""

    action: Swallow | Reset
    fault: Fault


Decision = Wait | Struck | None


class RuleBook:
    """The faults in force. `names` tells topics by their ids, as far as they are known."""

    def __init__(self, seed: int, names: Mapping[bytes, str]) -> None:
        self._dice = random.Random(seed)
        self._names = names
        self._faults: list[Fault] = []

    def add(self, fault: Fault) -> None:
        """From now on its rules hold."""
        self._faults.append(fault)

    def remove(self, fault: Fault) -> None:
        """They hold no more."""
        self._faults.remove(fault)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """What is in force now."""
        return tuple(self._faults)

    def needs_whole(self, way: Way, request: Request, broker: int) -> bool:
        """Whether some rule must see all of a frame. Transactional ids come first in a body, topics anywhere."""
        return any(
            rule.topics is not None and rule.fits_header(way, request.api, broker)
            for fault in self._faults
            for rule in fault.rules
        )

    def decide(self, frame: Frame, now: Moment) -> Decision:
        """What becomes of a frame at the head of its line: None lets it pass. Raises FrameError."""
        until_s = 0.0
        for fault in self._faults:
            for number, rule in enumerate(fault.rules):
                if not self._strikes(fault, number, rule, frame, now):
                    continue
                match rule.action:
                    case Swallow() | Reset():
                        return Struck(rule.action, fault)
                    case Delay(seconds):
                        until_s = max(until_s, frame.arrived_s + seconds)
                    case Hold():
                        until_s = math.inf
        return Wait(until_s) if until_s > now.monotonic_s else None

    def _strikes(self, fault: Fault, number: int, rule: Rule, frame: Frame, now: Moment) -> bool:
        place = (fault, number)
        struck = frame.is_struck.get(place)
        if struck is None:
            struck = fault.left[number] > 0 and self._fits(rule, frame) and self._diced(rule)
            frame.is_struck[place] = struck
            if struck:
                fault.hits += 1
                fault.first_hit = fault.first_hit or now
                fault.left[number] -= 1
        return struck

    def _diced(self, rule: Rule) -> bool:
        return rule.probability == 1 or self._dice.random() < rule.probability

    def _fits(self, rule: Rule, frame: Frame) -> bool:
        if not rule.fits_header(frame.way, frame.request.api, frame.broker):
            return False
        if rule.transactional_ids is not None and transactional_id(frame.request) not in rule.transactional_ids:
            return False
        if rule.topics is None:
            return True
        if frame.topics is None:
            frame.topics = topics(frame.request, self._names)
        return not rule.topics.isdisjoint(frame.topics)
