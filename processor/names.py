"""What a pipeline's own topics are called."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Names:
    """The topics that belong to a pipeline."""

    ledger: str
    beats: str

    @staticmethod
    def of(pipeline: str) -> Names:
        """By the pipeline's name."""
        return Names(ledger=f"{pipeline}.ledger", beats=f"{pipeline}.beats")
