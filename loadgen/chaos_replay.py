"""Row 16 of the fault matrix: the same input once more, from its beginning, gives the same set of outputs again."""

from __future__ import annotations

import subprocess

from millstream.loadgen.chaos_stage import Stage
from millstream.loadgen.node_process import MILLSTREAM
from millstream.loadgen.verify import VerifySettings, judge
from millstream.processor.errors import UnavailableError

_RESET_S = 60.0
_DRAIN_S = 30.0


def replay(stage: Stage, nodes: int, patience_s: float) -> list[str]:
    """With the load stopped and all of it processed: drain the nodes, reset the offsets, and process it again.

    Answers what is wrong then: each input must have exactly two effects, and both the same. Their order is that of two
    passes, and proves nothing. Raises UnavailableError where the pipeline cannot be reset.
    """
    wrong = [f"node {name} ended with {code} when it was to drain" for name, code in stage.troupe.drain(_DRAIN_S)]
    scene = stage.scene
    command = [*MILLSTREAM, "reset", scene.pipeline, "--to", "earliest"]
    command += ["--brokers", ",".join(scene.kafka.brokers)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_RESET_S, check=False)
    if done.returncode != 0:
        raise UnavailableError(f"the pipeline could not be reset: {done.stderr.strip()}")
    for _ in range(nodes):
        stage.troupe.start()
    stage.troupe.await_settled()
    settings = VerifySettings(
        inputs=(scene.input,), outputs=(scene.output,), group=scene.pipeline, effects_each=2, patience_s=patience_s
    )
    verdict = judge(scene.kafka.confluent_arguments(), settings)
    counts = {
        name: getattr(verdict.balance, name) for name in ("lost", "doubled", "unexpected", "altered", "scattered")
    }
    counts |= {"uncommitted": verdict.uncommitted_records, "offsets behind": verdict.offsets_behind or 0}
    return wrong + [f"after the replay: {name} {count}" for name, count in counts.items() if count]
