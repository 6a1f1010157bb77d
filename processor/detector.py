"""Which nodes are silent for so long that they must be dead: pure, adaptive, and suspicious of itself first.

A node's silence is measured against its own gaps between beats (Hayashibara's phi accrual in its simplest form, with a
lower and an upper bound). What is hard is to tell another's silence from one's own deafness (Lifeguard's lesson), so a
round of judgement counts for nothing

- when the own loop ran late, until a beat that was sent after that has come back: it stands in the log behind all that
  the others had to say by then;
- when the newest own beat that came back was sent too long ago: the log, or the way to it, is in trouble;
- when there are beats that have not been read.

Time in doubt is given back to the others twice: once because it was no silence, and once because whoever was held up
as we were needs a moment to be heard. After a doubt as long as the upper bound all are newcomers until heard again.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import Final

from millstream.processor.timings import Timings

# Own beats that are remembered while none comes back; then it is the newest that matter.
_SENT_KEPT: Final = 256
_GIVEN_BACK: Final = 2.0
# In doubt, and while somebody is suspected, things are looked at again after this part of a beat.
_LOOK_AGAIN: Final = 0.2


@dataclass(frozen=True, slots=True)
class Suspicion:
    """A node that has been silent for too long, and the numbers that say so.

    `mean_ms` and `deviation_ms` are those of its gaps, 0 while it is a newcomer. `is_held` says that most of the
    others were silent too, and that it got more time.
    """

    node: str
    silence_ms: float
    threshold_ms: float
    beats_seen: int
    mean_ms: float
    deviation_ms: float
    is_held: bool


class _Peer:
    """What is known of another node's beats. `heard` moves on by time that was given back."""

    __slots__ = ("beats", "gaps", "gaps_from", "heard", "is_new", "seq")

    def __init__(self, now: float, window: int) -> None:
        self.seq = -1
        self.beats = 0
        self.heard = now
        self.gaps: deque[float] = deque(maxlen=window)
        # When the gap under way began, or None where what comes next says nothing about the node.
        self.gaps_from: float | None = None
        # Not heard since we began to listen, or since the last long doubt.
        self.is_new = True

    def calm(self) -> tuple[float, float]:
        """Mean and standard deviation of its gaps."""
        mean = math.fsum(self.gaps) / len(self.gaps)
        return mean, math.sqrt(math.fsum((gap - mean) ** 2 for gap in self.gaps) / len(self.gaps))


class Detector:
    """The silence of a node's others. Times are seconds of one clock that never goes back."""

    def __init__(self, timings: Timings) -> None:
        self._timings = timings
        self._peers: dict[str, _Peer] = {}
        self._sent: dict[int, float] = {}
        # When the newest own beat that came back was sent: whatever was in the log by then has been read.
        self._proved: float | None = None
        self._began: float | None = None
        self._late_at: float | None = None
        self._late_s = 0.0
        self._is_behind = False
        self._next = math.inf

    # -- what happened ------------------------------------------------------------------------------------------

    def watch(self, now: float, node: str) -> None:
        """From now on the node's silence counts; it is a newcomer."""
        if node not in self._peers:
            self._peers[node] = _Peer(now, self._timings.window)
            self._next = min(self._next, now + self._timings.silence_min_s)

    def forget(self, node: str) -> None:
        """The node is gone; its beats, should there be more, mean nothing."""
        self._peers.pop(node, None)

    def beat(self, now: float, node: str, seq: int) -> None:
        """A beat was read. Those of unknown nodes, second copies and late ones count for nothing."""
        peer = self._peers.get(node)
        if peer is None or seq <= peer.seq:
            return
        if peer.gaps_from is not None and self._late_at is None and not self._is_unheard(now):
            # A gap that ends while we are in trouble ourselves says nothing about the node.
            peer.gaps.append(now - peer.gaps_from)
        peer.seq = seq
        peer.beats += 1
        peer.heard = peer.gaps_from = now
        peer.is_new = False

    def own_beat_sent(self, now: float, seq: int) -> None:
        """An own beat is on its way."""
        if self._began is None:
            self._began = now
        self._sent[seq] = now
        if len(self._sent) > _SENT_KEPT:
            del self._sent[next(iter(self._sent))]

    def own_beat_seen(self, now: float, seq: int) -> None:
        """An own beat was read."""
        sent = self._sent.pop(seq, None)
        if sent is None:
            return
        # Beats arrive in the order in which they were sent, or not at all.
        self._sent = {later: at for later, at in self._sent.items() if at > sent}
        self._regain_sight(now)
        self._proved = sent
        if self._late_at is not None and sent >= self._late_at:
            self._late_at = None

    def _regain_sight(self, now: float) -> None:
        blind_since = self._began if self._proved is None else self._proved
        unseen_s = math.inf if blind_since is None else now - blind_since
        if self._proved is None or unseen_s >= self._timings.silence_max_s:
            for peer in self._peers.values():
                peer.is_new = True
            self._give_back(now, math.inf)
        elif unseen_s > self._timings.own_wait_s:
            self._give_back(now, unseen_s - self._timings.own_wait_s)

    def _give_back(self, now: float, doubt_s: float) -> None:
        for peer in self._peers.values():
            peer.heard = min(now, peer.heard + _GIVEN_BACK * doubt_s)
            peer.gaps_from = None

    def looped(self, now: float, late_s: float) -> None:
        """The own loop came round, `late_s` later than it should have."""
        if late_s > self._timings.own_late_s:
            self._late_at, self._late_s = now, late_s
            self._give_back(now, late_s)

    def unread(self, is_behind: bool) -> None:
        """Whether there are beats that were not read yet."""
        self._is_behind = is_behind

    # -- what follows -------------------------------------------------------------------------------------------

    def _is_unheard(self, now: float) -> bool:
        return self._proved is None or now - self._proved > self._timings.own_wait_s

    @property
    def watched(self) -> frozenset[str]:
        """The nodes whose silence counts."""
        return frozenset(self._peers)

    def doubt(self, now: float) -> str | None:
        """Why nothing can be said about others at the moment, or None."""
        if self._is_behind:
            return "there are beats that were not read yet"
        if self._proved is None:
            return "none of its own beats has come back yet"
        if self._is_unheard(now):
            return (
                f"the last of its own beats that came back was sent {(now - self._proved) * 1000:.0f} ms ago, "
                f"more than {self._timings.own_wait_s * 1000:.0f} ms"
            )
        if self._late_at is not None:
            return f"its loop ran {self._late_s * 1000:.0f} ms late and it has not caught up"
        return None

    def unseen_s(self, now: float) -> float | None:
        """How long ago the newest own beat that came back was sent; None before the first was sent."""
        since = self._began if self._proved is None else self._proved
        return None if since is None else now - since

    def judge(self, now: float) -> list[Suspicion]:
        """Who has been silent for too long, in order of the nodes' names; nobody while in doubt."""
        again = now + _LOOK_AGAIN * self._timings.beat_interval_s
        if self.doubt(now) is not None:
            self._next = again
            return []
        least_s = self._timings.silence_min_s
        self._next = min((peer.heard for peer in self._peers.values()), default=math.inf) + least_s
        if self._next > now:
            return []
        hold_s = self._hold_s(now)
        suspicions = []
        self._next = math.inf
        for node, peer in self._peers.items():
            # Sums are compared, not differences: rounded otherwise, it would be called again without end for the same
            # moment.
            if now < peer.heard + least_s:
                self._next = min(self._next, peer.heard + least_s)
                continue
            suspicion, due = self._look_at(now, node, peer, hold_s)
            self._next = min(self._next, due if suspicion is None else again)
            suspicions += [] if suspicion is None else [suspicion]
        return sorted(suspicions, key=lambda suspicion: suspicion.node)

    def _hold_s(self, now: float) -> float:
        """The time that everyone gets because most of the others turn silent together.

        Together is within two beats. One that is silent alone is not most of the others, though it be all of them: of
        two nodes each must see the other's death at once.
        """
        quiet_s = self._timings.silence_min_s - 2 * self._timings.beat_interval_s
        quiet = sum(now - peer.heard > quiet_s for peer in self._peers.values())
        return self._timings.hold_s if quiet >= 2 and quiet > len(self._peers) / 2 else 0.0

    def _look_at(self, now: float, node: str, peer: _Peer, hold_s: float) -> tuple[Suspicion | None, float]:
        threshold_s, mean_s, deviation_s = self._threshold(peer)
        threshold_s += hold_s
        silence_s = now - peer.heard
        if now < peer.heard + threshold_s:
            # The hold may end before that, when others are heard again.
            soon = now + self._timings.beat_interval_s if hold_s else math.inf
            return None, min(peer.heard + threshold_s, soon)
        suspicion = Suspicion(
            node,
            silence_ms=silence_s * 1000,
            threshold_ms=threshold_s * 1000,
            beats_seen=peer.beats,
            mean_ms=mean_s * 1000,
            deviation_ms=deviation_s * 1000,
            is_held=hold_s > 0,
        )
        return suspicion, now

    def _threshold(self, peer: _Peer) -> tuple[float, float, float]:
        timings = self._timings
        if not self._is_known(peer):
            return timings.newcomer_s, 0.0, 0.0
        mean, deviation = peer.calm()
        threshold = mean + timings.deviations * max(deviation, timings.deviation_min_s)
        return min(max(threshold, timings.silence_min_s), timings.silence_max_s), mean, deviation

    def threshold_s(self, node: str) -> float | None:
        """The silence after which the node would be suspected; None where it is not watched."""
        peer = self._peers.get(node)
        return None if peer is None else self._threshold(peer)[0]

    def silence_s(self, now: float, node: str) -> float | None:
        """How long the node has been silent; None where it is not watched."""
        peer = self._peers.get(node)
        return None if peer is None else now - peer.heard

    def has_heard(self, node: str) -> bool:
        """Whether the node was heard since it is watched, and since the last long doubt."""
        peer = self._peers.get(node)
        return peer is not None and not peer.is_new

    def is_known(self, node: str) -> bool:
        """Whether the node was heard for a full window, and is judged by its own gaps."""
        peer = self._peers.get(node)
        return peer is not None and self._is_known(peer)

    def _is_known(self, peer: _Peer) -> bool:
        return not peer.is_new and len(peer.gaps) >= self._timings.window

    def next_deadline(self) -> float | None:
        """When `judge` can have something to say, if nothing else happens. Beats only ever put it off."""
        return self._next if self._peers else None
