"""What came of `millstream demo --offload`: device, switches, what the killed device cost, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from millstream.loadgen.demo_offload_app import BUDGET_MS
from millstream.loadgen.demo_offload_check import ScoreCheck
from millstream.loadgen.demo_offload_watch import Seen
from millstream.loadgen.produce import SendReport
from millstream.loadgen.verdict import Verdict

_FIXED_US: Final = 300.0
_TIMES_AS_QUICK: Final = 20.0
# A real device costs as much as many cores and pays from many cores' load on. The demo has one worker, and so its
# device costs a part of a core.
_PRICE_CPU: Final = 0.04
_PRICE_GPU: Final = 0.002


@dataclass(frozen=True, slots=True)
class Device:
    """The simulated device, and the CPU's cost that it was set by. Microseconds, prices for an hour."""

    cpu_us: float
    fixed_us: float
    event_us: float

    @staticmethod
    def as_quick_as(cpu_us: float) -> Device:
        """A device for a stage of which an event takes so long on a core."""
        return Device(round(cpu_us, 2), _FIXED_US, round(cpu_us / _TIMES_AS_QUICK, 2))

    @property
    def cpu_events_per_s(self) -> float:
        """What one core could do, if there were nothing but the network."""
        return 1e6 / self.cpu_us

    @property
    def text(self) -> str:
        """As `--devices` wants it."""
        return f"simulated:fixed_us={self.fixed_us:g},event_us={self.event_us:g}"

    def price_arguments(self) -> list[str]:
        """For `millstream run`."""
        return [f"--price-cpu-core-hour={_PRICE_CPU}", f"--price-gpu-hour={_PRICE_GPU}", "--gpu-charge=leased"]

    def sentences(self) -> Iterator[str]:
        """What the show was set to."""
        yield (
            f"The stage: a neural network, {self.cpu_us:,.0f} µs of a core for an event (measured just now); "
            f"p99 is to be within {BUDGET_MS:g} ms."
        )
        yield (
            f"The device: simulated, no GPU. Its law: {self.fixed_us:g} µs for a batch and {self.event_us:g} µs for an "
            f"event, {_TIMES_AS_QUICK:g} times as quick as the CPU."
        )
        yield (
            f"Prices for an hour: {_PRICE_CPU:g} a core, {_PRICE_GPU:g} the device while it is used: in scale with a "
            f"load of one worker, where a real GPU would cost as much as some 90 cores and need their load."
        )


@dataclass(frozen=True, slots=True)
class Fallback:
    """What the killed device cost. `detection_ms`: from the end of its process until the worker used it no more;
    `readmitted_s`: until it was ready again. None where that was not seen. `records` by reason."""

    records: dict[str, int]
    detection_ms: float | None
    readmitted_s: float | None

    def as_json(self) -> dict[str, object]:
        """Flat, with `fallbacks`."""
        return {
            "fault": "device killed in the middle of a batch",
            "fault_detection_ms": None if self.detection_ms is None else round(self.detection_ms, 1),
            "readmitted_s": None if self.readmitted_s is None else round(self.readmitted_s, 2),
            "fallbacks": dict(self.records),
        }


def fallback_of(seen: Seen, killed_s: float | None) -> Fallback:
    """`killed_s` is when the device's process ended, in seconds since the epoch; None where that is not known."""
    opened_s = next((at_s for at_s, state, _ in seen.states if state == "open"), None)
    detection_ms = readmitted_s = None
    if opened_s is not None and killed_s is not None:
        # The log's stamps are cut to milliseconds.
        detection_ms = max(0.0, (opened_s - killed_s) * 1000)
    if opened_s is not None:
        ready_s = next((at_s for at_s, state, _ in seen.states if state == "ready" and at_s > opened_s), None)
        readmitted_s = None if ready_s is None else ready_s - opened_s
    return Fallback(dict(seen.fallbacks), detection_ms, readmitted_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class OffloadDemoReport:
    """How the demo ended. `not_seen` names the act in which what was to be seen did not happen in time."""

    device: Device
    seen: Seen
    sending: SendReport
    verdict: Verdict
    check: ScoreCheck
    fallback: Fallback
    not_seen: str | None

    @property
    def is_exact(self) -> bool:
        """Whether each event had its effect exactly once, with the CPU's score."""
        return self.verdict.is_clean and not self.sending.failed and not self.check.different and self.check.checked > 0

    @property
    def is_clean(self) -> bool:
        """Whether that holds, and the stage went to the device and back, fell back, and had its device again."""
        went = {switch.switch for switch in self.seen.switches} >= {"cpu>gpu", "gpu>cpu"}
        fell_back = sum(self.fallback.records.values()) > 0 and self.fallback.readmitted_s is not None
        return self.is_exact and self.not_seen is None and went and fell_back

    def as_json(self) -> dict[str, object]:
        """One object, the verdict's fields among the others."""
        verdict = self.verdict.as_json()
        # Nobody watched while events came in: the judge came when the load was over.
        del verdict["timeline"]
        return {
            **verdict,
            "clean": self.is_clean,
            "cpu_us_per_event": self.device.cpu_us,
            "device": self.device.text,
            "budget_ms": BUDGET_MS,
            "switches": [switch.as_json() for switch in self.seen.switches],
            "decisions": dict(self.seen.decisions),
            "records": dict(self.seen.records),
            "probes": dict(self.seen.probes),
            **self.fallback.as_json(),
            "scores_checked": self.check.checked,
            "scores_different": self.check.different,
            "sent": self.sending.events,
            "not_seen": self.not_seen,
        }
