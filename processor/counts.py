"""What was done so far, in numbers: a value light enough for the agent, which must not load NumPy to add them up."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """What a pipeline did with its records since it started; only ever grows."""

    records_in: int = 0
    records_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0
    dead_letters: int = 0
    skipped: int = 0
    retries: int = 0

    def add(self, other: Counts) -> None:
        """Add all of `other`."""
        self.records_in += other.records_in
        self.records_out += other.records_out
        self.bytes_in += other.bytes_in
        self.bytes_out += other.bytes_out
        self.dead_letters += other.dead_letters
        self.skipped += other.skipped
        self.retries += other.retries
