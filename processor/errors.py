"""Every error that millstream raises on purpose, as one tree.

    MillstreamError
    ├── UserError                  the user's to mend; the message names the thing, the value and the remedy
    │   ├── PipelineError          a pipeline that cannot be built: every mistake found, in one error
    │   ├── SettingsError          wrong, unknown or contradictory settings: every mistake, in one error
    │   ├── StageError             a stage failed on a record and its policy says stop
    │   └── OffsetLostError        a committed offset is gone and the policy says stop
    ├── RecordError                one record cannot be processed; the stage's policy decides what follows
    │   ├── DecodeError            its bytes are not what the stage's type says
    │   ├── EncodeError            its value cannot be written without a change of meaning
    │   ├── RecordTooLargeError    it does not fit into its output topic
    │   └── StalledError           a stage did not come back from it, several times
    ├── CorruptBatchError          a stored batch that is damaged or hostile
    ├── PositionLostError          the log does not hold a position that it should
    ├── InvariantError             a bug in millstream: stop before harm is done
    └── WorldError                 Kafka, the network or another owner
        ├── UnavailableError       it may work in a moment: retry within a bound
        ├── RefusedError           retrying cannot help: credentials, authorization, a broker that lacks a feature
        ├── FencedError            somebody else owns the shard now
        └── OutcomeUnknownError    a transaction whose end nobody answered

The class says what the caller must do: retry (`UnavailableError`), end the shard's run and start again from the
fence (`FencedError`, `OutcomeUnknownError`), apply the stage's policy (`RecordError`), or stop (`UserError`,
`RefusedError`). Payloads of records never appear in a message.
"""

from __future__ import annotations

from collections.abc import Sequence


class MillstreamError(Exception):
    """The root of all errors raised by millstream."""


class UserError(MillstreamError):
    """Something that the user has to change; nothing was lost."""


class _MistakesError(UserError):
    """Mistakes are collected and reported together, so that a user mends them in one go."""

    def __init__(self, subject: str, mistakes: Sequence[str]) -> None:
        self.subject = subject
        self.mistakes = tuple(mistakes)
        lines = "\n".join(f"  - {mistake}" for mistake in self.mistakes)
        super().__init__(f"{subject}:\n{lines}")


class PipelineError(_MistakesError):
    """The pipeline cannot be built or started. `mistakes` lists everything that is wrong."""


class SettingsError(_MistakesError):
    """Settings are wrong, unknown or contradictory. `mistakes` lists all of them."""


class StageError(UserError):
    """A stage failed on a record and its policy is to stop. `__cause__` is the stage's own error."""


class OffsetLostError(UserError):
    """A committed offset that should be there is not (expired, or the log no longer holds it)."""


class RecordError(MillstreamError):
    """One record cannot be processed."""


class DecodeError(RecordError):
    """The record's bytes are not what its declared type says."""


class EncodeError(RecordError):
    """The value cannot be written as declared without silently changing it."""


class RecordTooLargeError(RecordError):
    """The record alone is larger than its output topic's `max.message.bytes`."""


class StalledError(RecordError):
    """A stage did not come back from the record within its time, as often as the pipeline allows."""


class CorruptBatchError(MillstreamError):
    """A stored record batch is damaged or lies about itself.

    `base_offset` is where it starts; `next_offset` is where reading may go on after it, or None when
    the damage hides its length. `reads` is how often it was read and found to be so.
    """

    def __init__(self, reason: str, *, base_offset: int, next_offset: int | None, reads: int = 1) -> None:
        self.reason = reason
        self.base_offset = base_offset
        self.next_offset = next_offset
        self.reads = reads
        super().__init__(f"record batch at offset {base_offset}: {reason}")


class WorldError(MillstreamError):
    """The world outside the process did not do what was asked."""


class UnavailableError(WorldError):
    """Not now; the same request may succeed in a moment."""


class RefusedError(WorldError):
    """Never as things stand: credentials, authorization, or a broker that lacks a feature."""


class FencedError(WorldError):
    """Another owner has fenced this shard; everything since the last commit must be dropped."""


class OutcomeUnknownError(WorldError):
    """Nobody can say whether a transaction was committed; only a new fence settles it."""


class PositionLostError(MillstreamError):
    """The log does not hold a position that it should: retention passed it, or the topic was made anew."""


class InvariantError(MillstreamError):
    """A promise that only a bug in millstream can break; nothing was committed after it was seen."""
