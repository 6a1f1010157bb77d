"""What a node says of its offload stage while it runs: from its log as it happens, and from its `/status`."""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, Final

_PAIR: Final = re.compile(r'(\w+)=("(?:[^"\\]|\\.)*"|\S*)')
_ANSWER_S: Final = 2.0


@dataclass(frozen=True, slots=True)
class LogLine:
    """One event of a log: when (seconds since the epoch), what, and its fields as texts."""

    at_s: float
    event: str
    fields: Mapping[str, str]

    @staticmethod
    def read(line: str) -> LogLine | None:
        """None for what is no event, such as a line of a traceback."""
        stamp, _, rest = line.partition(" ")
        fields = {name: json.loads(value) if value.startswith('"') else value for name, value in _PAIR.findall(rest)}
        if "event" not in fields:
            return None
        try:
            at_s = datetime.fromisoformat(stamp).timestamp()
        except ValueError:
            return None
        return LogLine(at_s, fields.pop("event"), fields)


@dataclass(slots=True)
class Switch:
    """The planner's word on a switch, with the figures that it was made from; `explanation` is the whole decision as
    `/status` had it first on the new device, and is there a moment later."""

    at_s: float
    switch: str
    why: str
    reason: str
    figures: Mapping[str, str]
    explanation: str = ""

    @property
    def to(self) -> str:
        """Where the stage went."""
        return self.switch.partition(">")[2]

    def as_json(self) -> dict[str, object]:
        """One object."""
        return {
            "at_s": round(self.at_s, 3),
            "switch": self.switch,
            "why": self.why,
            "reason": self.reason,
            "figures": {name: float(text) for name, text in self.figures.items()},
            "explanation": self.explanation,
        }


@dataclass(slots=True)
class Seen:
    """What is known of the stage by now. `states` are those of the device, as (seconds, state, reason)."""

    switches: list[Switch] = field(default_factory=list)
    states: list[tuple[float, str, str]] = field(default_factory=list)
    records: Mapping[str, int] = field(default_factory=dict)
    fallbacks: Mapping[str, int] = field(default_factory=dict)
    decisions: Mapping[str, int] = field(default_factory=dict)
    probes: Mapping[str, int] = field(default_factory=dict)
    explanation: str = ""
    device_pid: int | None = None
    rate: float = 0.0
    backlog: int = 0

    @property
    def runs_on(self) -> str:
        """Where batches go."""
        return self.switches[-1].to if self.switches else "cpu"

    @property
    def state(self) -> str:
        """How the device is."""
        return self.states[-1][1] if self.states else "absent"


class OffloadWatch:
    """Reads the log of one node with one worker from its beginning, and asks for its status."""

    def __init__(self, log_file: Path) -> None:
        self._log_file = log_file
        self._position = 0
        self._address: str | None = None
        self.seen = Seen()
        self.news: list[LogLine] = []
        """All that the log has told of stage and device."""

    def look(self) -> None:
        """Take in what is new. A node that does not answer has told nothing."""
        for line in self._new_lines():
            self._heard(line)
        if self._address is None:
            return
        try:
            with urllib.request.urlopen(f"http://{self._address}/status", timeout=_ANSWER_S) as answer:
                self._status(json.load(answer))
        except (OSError, ValueError):
            pass

    def _new_lines(self) -> Iterator[LogLine]:
        if not self._log_file.exists():
            return
        with self._log_file.open("rb") as log:
            log.seek(self._position)
            for raw in log:
                if not raw.endswith(b"\n"):
                    return
                self._position += len(raw)
                if (line := LogLine.read(raw.decode(errors="replace"))) is not None:
                    yield line

    def _heard(self, line: LogLine) -> None:
        fields = dict(line.fields)
        match line.event:
            case "http.listening":
                self._address = fields["address"]
                return
            case "offload.switched":
                known = {name: fields.pop(name) for name in ("stage", "switch", "why", "reason")}
                self.seen.switches.append(Switch(line.at_s, known["switch"], known["why"], known["reason"], fields))
            case "offload.device_state":
                self.seen.states.append((line.at_s, fields["state"], fields["reason"]))
            case _ if not line.event.startswith(("offload.", "device.")):
                return
        self.news.append(line)

    def _status(self, status: Mapping[str, Any]) -> None:
        seen = self.seen
        devices, stages = status["devices"], status["offload"]
        seen.device_pid = devices[0]["pid"] if devices else None
        if not stages:
            return
        counts, worker = stages[0]["counts"], next(iter(stages[0]["workers"]), None)
        seen.records, seen.fallbacks = counts["records"], counts["fallbacks"]
        seen.decisions, seen.probes = counts["decisions"], counts["probes"]
        if worker is None or worker["decision"] is None:
            return
        seen.explanation = worker["explanation"]
        inputs = worker["decision"]["inputs"]
        seen.rate, seen.backlog = inputs["rate_now"], inputs["backlog"]
        if seen.switches and not seen.switches[-1].explanation and worker["runs_on"] == seen.runs_on:
            seen.switches[-1].explanation = seen.explanation
