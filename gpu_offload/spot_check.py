"""A few rows of each of a device's answers are computed on the CPU as well, before anything of the answer is used.

A device that has gone wrong mostly answers nonsense for whole batches: zeros, what was there before, another batch's
rows. That is found at once. A single wrong number among thousands is not; that is what shadow runs compare for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from millstream.gpu_offload.canary import difference
from millstream.processor.offloading import ArrayColumns, StageDefinition
from millstream.processor.stages.array_columns import chosen_rows

_RANDOM_ROWS: Final = 2


class SpotCheck:
    """Checks a stage's answers. Two of the rows are other ones each time, from a seed."""

    def __init__(self, stage: StageDefinition, seed: int) -> None:
        self._stage = stage
        self._random = np.random.default_rng(seed)

    def trouble(
        self, columns: ArrayColumns, answer: Mapping[str, npt.NDArray[Any]], resident: Sequence[Mapping[str, Any]]
    ) -> str | None:
        """What is wrong with the answer, as far as the few rows tell; None where nothing is.

        Raises whatever the function raises on the CPU: then rows are at fault, and no device.
        """
        # The first and the last: what is cut off or shifted shows at the edges.
        chosen = self._random.integers(0, columns.rows, _RANDOM_ROWS)
        rows = np.unique(np.concatenate([[0, columns.rows - 1], chosen]))
        expected = self._stage.offloadable.compute(chosen_rows(columns, rows), resident)
        found = {name: array[rows] for name, array in answer.items()}
        return difference(self._stage, expected, found, self._stage.offloadable.equality)
