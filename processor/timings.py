"""How long a node waits for what: every figure of the membership, and whether they go together."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Final

from millstream.processor.errors import SettingsError


@dataclass(frozen=True, slots=True, kw_only=True)
class Timings:
    """All waits in seconds.

    `beat_interval_s` is from beat to beat. A node is suspected after a silence of the mean of its last `window` gaps
    and `deviations` times their standard deviation, which counts as `deviation_min_s` at least; but never before
    `silence_min_s`, nor later than `silence_max_s`. While there are fewer gaps than that, it is after `newcomer_s`.

    A node trusts its own eyes unless its loop ran more than `own_late_s` late or none of its last `own_beats` beats
    has come back. Where more than half of the others are silent together, they get `hold_s` more.

    Among those who find a node dead the first says so at once, each other one `verdict_step_s` later than the one
    before it. Whoever writes a verdict to the ledger gives up after `verdict_valid_s`: by then the silence has to be
    judged anew. Any other record is given up and, if it is still true, said again after `resend_s`.

    A shard that is to move is seized, and a worker that does not let go of one is to be killed, after
    `release_timeout_s`. After `snapshot_records` records comes a snapshot. A beat that waits for its answer holds up
    the next ones for `beat_wait_s` at most, and `reconnect_max_s` is the longest pause before a broker that has been
    away is tried again. A node that could not read the ledger for `ledger_wait_s` does not beat: it is of no use.
    """

    beat_interval_s: float = 0.05
    beat_wait_s: float = 0.15
    ledger_wait_s: float = 5.0
    reconnect_max_s: float = 0.5
    silence_min_s: float = 0.25
    silence_max_s: float = 0.4
    newcomer_s: float = 1.0
    window: int = 200
    deviation_min_s: float = 0.02
    deviations: float = 10.0
    own_late_s: float = 0.04
    own_beats: int = 3
    hold_s: float = 0.3
    verdict_step_s: float = 0.02
    verdict_valid_s: float = 0.3
    resend_s: float = 1.0
    release_timeout_s: float = 5.0
    snapshot_records: int = 500

    @property
    def own_wait_s(self) -> float:
        """How old the newest of a node's own beats that came back may be."""
        return self.own_beats * self.beat_interval_s


# What a full window is worth: fewer gaps have no deviation to speak of.
_WINDOW_MIN: Final = 20


def check_timings(timings: Timings, *, commit_timeout_s: float, transaction_timeout_s: float) -> None:
    """Raise SettingsError with every relation between the timings that does not hold, and both its numbers.

    The other bounds are a shard's for one commit, and the broker's for an open transaction.
    """
    mistakes = [
        f"{field.name} is {getattr(timings, field.name):g}: it must be more than 0"
        for field in fields(timings)
        if not getattr(timings, field.name) > 0
    ]
    if timings.window < _WINDOW_MIN:
        mistakes.append(f"window is {timings.window}: {_WINDOW_MIN} gaps at least say something; raise it")
    for relation in _relations(timings, commit_timeout_s, transaction_timeout_s):
        mistakes += [] if relation.holds else [relation.mistake()]
    if mistakes:
        raise SettingsError("timings that do not go together", mistakes)


@dataclass(frozen=True, slots=True)
class _Relation:
    """`low` must be less than `high`, or where `may_be_equal` no more than it, because of `why`."""

    low_name: str
    low: float
    high_name: str
    high: float
    why: str
    may_be_equal: bool = False

    @property
    def holds(self) -> bool:
        return self.low < self.high or (self.may_be_equal and self.low == self.high)

    def mistake(self) -> str:
        must = "at most" if self.may_be_equal else "less than"
        return (
            f"{self.low_name} is {self.low:g} s and must be {must} {self.high_name}, which is {self.high:g} s: "
            f"{self.why}; lower the one or raise the other"
        )


def _relations(t: Timings, commit_timeout_s: float, transaction_timeout_s: float) -> list[_Relation]:
    beat = t.beat_interval_s
    return [
        _Relation(
            "own_beats beats and one more",
            t.own_wait_s + beat,
            "silence_min_s",
            t.silence_min_s,
            "a node must doubt itself before it can doubt others",
        ),
        _Relation(
            "beat_wait_s and a beat",
            t.beat_wait_s + beat,
            "silence_min_s",
            t.silence_min_s,
            "one beat that gets no answer would already look like a death",
        ),
        _Relation(
            "own_late_s", t.own_late_s, "beat_interval_s", beat, "a loop that misses a beat must notice it", True
        ),
        _Relation(
            "silence_min_s", t.silence_min_s, "silence_max_s", t.silence_max_s, "it is the lower bound of the two", True
        ),
        _Relation(
            "beat_interval_s and deviations times deviation_min_s",
            beat + t.deviations * t.deviation_min_s,
            "silence_max_s",
            t.silence_max_s,
            "even the calmest beats would always be judged by the upper bound",
            True,
        ),
        _Relation(
            "silence_max_s",
            t.silence_max_s,
            "newcomer_s",
            t.newcomer_s,
            "who is not known yet gets more time than who is",
            True,
        ),
        _Relation(
            "beat_wait_s and reconnect_max_s",
            t.beat_wait_s + t.reconnect_max_s,
            "newcomer_s",
            t.newcomer_s,
            "after a broker's restart nodes that are well would be found dead",
        ),
        _Relation(
            "two beats", 2 * beat, "hold_s", t.hold_s, "whoever was held up must have time to be heard again", True
        ),
        _Relation(
            "verdict_step_s",
            t.verdict_step_s,
            "verdict_valid_s",
            t.verdict_valid_s,
            "the first one's verdict would be given up before the second one's turn",
        ),
        _Relation(
            "verdict_valid_s",
            t.verdict_valid_s,
            "resend_s",
            t.resend_s,
            "a verdict goes out of date sooner than a fact",
            True,
        ),
        _Relation(
            "resend_s",
            t.resend_s,
            "release_timeout_s",
            t.release_timeout_s,
            "a RELEASED that got lost must be said again before the shard is seized",
        ),
        _Relation(
            "newcomer_s",
            t.newcomer_s,
            "ledger_wait_s",
            t.ledger_wait_s,
            "a ledger that is away for a moment would silence every node",
        ),
        _Relation(
            "commit_timeout_s",
            commit_timeout_s,
            "transaction_timeout_s",
            transaction_timeout_s,
            "the broker would abort a transaction that is still being committed",
        ),
    ]
