"""One case at one level: its rounds one after the other, then the judge."""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from millstream.loadgen.chaos_cases import Case
from millstream.loadgen.chaos_replay import replay
from millstream.loadgen.chaos_stage import Brokers, Level, Round, Stage, StageSettings
from millstream.loadgen.chaos_surroundings import TRAP
from millstream.loadgen.chaos_timing import Quantiles
from millstream.loadgen.chaos_troupe import APP, RIPE_S
from millstream.loadgen.verdict import Verdict
from millstream.loadgen.verify import VerifySettings, judge
from millstream.processor.errors import MillstreamError

_PATIENCE_S = 30.0
_REPLACED_S = 90.0


@dataclass(slots=True)
class CaseResult:
    """What came of a case. `failure` says why it could not be played or judged to its end; `mistaken` counts verdicts
    on nodes that nothing was done to, in `watched_s` seconds."""

    case: Case
    level: Level
    seed: int
    rounds: list[Round] = field(default_factory=list)
    verdict: Verdict | None = None
    mistaken: int = 0
    mistaken_on: list[str] = field(default_factory=list)
    watched_s: float = 0.0
    beat_gaps: Quantiles | None = None
    steps_back: list[str] = field(default_factory=list)
    offset_looks: int = 0
    failure: str | None = None

    @property
    def complaints(self) -> list[str]:
        """Broken expectations of all rounds, and committed offsets that went back."""
        of_rounds = [f"round {one.number}: {complaint}" for one in self.rounds for complaint in one.complaints]
        return of_rounds + [f"the committed offset of {step} went back" for step in self.steps_back]

    @property
    def is_clean(self) -> bool:
        """Whether it was played to its end, nothing was lost or doubled, and all went as the matrix says."""
        is_just = self.verdict is not None and self.verdict.is_clean
        return is_just and self.failure is None and not self.complaints


def play_case(
    case: Case,
    level: Level,
    rounds: int,
    brokers: Brokers,
    seed: int,
    tell: Callable[[str], None],
    *,
    logs: Path | None = None,
    app: str = APP,
    ripe_s: float = RIPE_S,
) -> CaseResult:
    """Play it, and leave no process behind. What goes wrong is in the result. `logs` keeps the nodes' logs."""
    result = CaseResult(case, level, seed)
    try:
        with ExitStack() as stack:
            if logs is None:
                directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-chaos-")))
            else:
                directory = logs / f"{case.name}-{level.value}"
                directory.mkdir(parents=True, exist_ok=True)
                (directory / "stop-load").unlink(missing_ok=True)
            environ = dict(case.environ)
            if case.row == "4":
                environ["MILLSTREAM_CHAOS_TRAP"] = str(directory / TRAP)
            rate = case.rate if level is Level.IDLE else None
            settings = StageSettings(
                level=level,
                seed=seed,
                nodes=case.nodes,
                workers=case.workers,
                rate=rate,
                environ=environ,
                app=app,
                ripe_s=ripe_s,
            )
            stage = stack.enter_context(Stage(brokers, settings, os.environ, directory))
            _play(case, stage, min(rounds, case.rounds_max), result, tell)
    except MillstreamError as error:
        result.failure = str(error)
    except Exception as error:
        # Other cases are worth playing, and their figures worth having.
        result.failure = f"{type(error).__name__}: {error}"
    return result


def _play(case: Case, stage: Stage, rounds: int, result: CaseResult, tell: Callable[[str], None]) -> None:
    tell("starting nodes")
    for number in range(case.nodes):
        # The youngest ones: those that would find others dead are the oldest.
        left = case.nodes - number
        stage.troupe.start(network=left <= case.networked, proxy=left <= case.proxied, clock=left <= case.clocked)
    stage.open()
    began = time.monotonic()
    try:
        for number in range(rounds):
            tell(f"round {number + 1} of {rounds}")
            stage.check()
            result.rounds.append(case.play(stage, number))
    finally:
        dead = stage.ledger.mistaken(stage.troupe.struck)
        result.mistaken = len(dead)
        result.mistaken_on = [
            f"{one.node} by {one.by} after {one.silence_ms:.0f} ms (threshold {one.threshold_ms:.0f}) and "
            f"{one.beats_seen} beats"
            for one in dead
        ]
        result.watched_s = time.monotonic() - began
        result.beat_gaps = stage.ledger.beat_gaps(stage.troupe.struck)
    tell("judging")
    stage.troupe.await_settled(_REPLACED_S)
    if (wrong := stage.stop_load()) is not None:
        result.failure = f"the generator could not send all: {wrong}"
    scene = stage.scene
    settings = VerifySettings(
        inputs=(scene.input,), outputs=(scene.output,), group=scene.pipeline, patience_s=_PATIENCE_S
    )
    result.verdict = judge(scene.kafka.confluent_arguments(), settings)
    stage.offsets.close()
    result.steps_back, result.offset_looks = stage.offsets.steps_back, stage.offsets.looks
    if case.is_replayed:
        tell("replaying")
        result.rounds[-1].complaints += replay(stage, case.nodes, _PATIENCE_S)
