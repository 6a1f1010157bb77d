"""Log lines that people and machines can read: one line an event, `key=value` fields, on stderr.

Payloads of records have no place here; fields are names, numbers and messages of errors.
"""

from __future__ import annotations

import json
import logging
import re
import time
from dataclasses import dataclass
from typing import Final

LEVELS: Final = ("debug", "info", "warning", "error")
_PLAIN: Final = re.compile(r"[\w.,:/+@\[\]<>-]+", re.ASCII)


class EventLog:
    """Logs named events with fields; `bind` gives one that adds fields to each."""

    def __init__(self, logger: logging.Logger, **fields: object) -> None:
        self._logger = logger
        self._fields = fields

    def bind(self, **fields: object) -> EventLog:
        """A log that adds these fields to all of this one's."""
        return EventLog(self._logger, **{**self._fields, **fields})

    def debug(self, event: str, **fields: object) -> None:
        """What helps to follow the program step by step."""
        self._log(logging.DEBUG, event, fields)

    def info(self, event: str, **fields: object) -> None:
        """What an operator wants to have seen happen."""
        self._log(logging.INFO, event, fields)

    def warning(self, event: str, **fields: object) -> None:
        """What should not happen and was dealt with."""
        self._log(logging.WARNING, event, fields)

    def error(self, event: str, **fields: object) -> None:
        """What stops something."""
        self._log(logging.ERROR, event, fields)

    def _log(self, level: int, event: str, fields: dict[str, object]) -> None:
        if self._logger.isEnabledFor(level):
            self._logger.log(level, _Message(event, {**self._fields, **fields}))


@dataclass(frozen=True, slots=True)
class _Message:
    """An event and its fields. Where we run inside of another program, its formatter shows both."""

    event: str
    fields: dict[str, object]

    def __str__(self) -> str:
        return " ".join([self.event, *_pairs(self.fields)])


class KeyValueFormatter(logging.Formatter):
    """Time in UTC, level, then `event=...` and the fields in the order in which they were given."""

    def format(self, record: logging.LogRecord) -> str:
        """One line, whatever the fields hold; a traceback follows on lines of its own."""
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        message = record.msg if isinstance(record.msg, _Message) else _Message(record.getMessage(), {})
        pairs = " ".join(_pairs({"event": message.event, **message.fields}))
        line = f"{seconds}.{int(record.msecs):03d}Z {record.levelname} {record.name} {pairs}"
        if record.exc_info:
            line += "\n" + self.formatException(record.exc_info)
        return line


def _pairs(fields: dict[str, object]) -> list[str]:
    return [f"{key}={_written(value)}" for key, value in fields.items()]


def _written(value: object) -> str:
    text = f"{value:.6g}" if isinstance(value, float) else str(value)
    if _PLAIN.fullmatch(text):
        return text
    # Quoting as JSON does keeps a line break in an error's message from starting a line of its own. There are more
    # of those than JSON knows, hence the second condition.
    return json.dumps(text, ensure_ascii=not text.isprintable())


def configure_logging(level: str) -> None:
    """All of this process's logs go to stderr in our format, from `level` (one of LEVELS) up."""
    handler = logging.StreamHandler()
    handler.setFormatter(KeyValueFormatter())
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
