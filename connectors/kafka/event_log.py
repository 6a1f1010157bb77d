"""Where the Kafka client's log lines go."""

from __future__ import annotations

import logging
from typing import Final

from millstream.processor.event_log import EventLog

LOG: Final = EventLog(logging.getLogger("millstream.kafka"))
