"""What brokers that have just started do before the first fault, so that it is not their start that is measured.

A Java virtual machine compiles its code while it runs. In the first half minute of a broker's life a commit takes
several times as long as later, and both cores of a small machine are busy with little else: a planned move then pauses
a partition for 200 to 400 ms, and for 30 to 80 ms a minute later.
"""

from __future__ import annotations

import os
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Final

from millstream.loadgen.chaos_stage import Brokers, Level, Stage, StageSettings

WARM_UP_S: Final = 45.0
_NODES, _WORKERS = 2, 1
_LOOK_S = 1.0


def warm_up(brokers: Brokers, seconds: float, seed: int) -> None:
    """Run nodes under load for so long. Raises UnavailableError where that cannot be done."""
    settings = StageSettings(level=Level.HALF, seed=seed, nodes=_NODES, workers=_WORKERS)
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="millstream-chaos-")))
        stage = stack.enter_context(Stage(brokers, settings, os.environ, directory))
        for _ in range(_NODES):
            stage.troupe.start()
        stage.open()
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            stage.check()
            time.sleep(_LOOK_S)
        stage.stop_load()
