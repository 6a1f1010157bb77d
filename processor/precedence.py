"""The agent before everything else on its machine: what it has to do is short, and its beats must not wait.

A starting worker takes a core for seconds, and where the kernel shares cores out by session or by container, the agent
pays for what its workers use. On two busy cores, an agent that had a beat to send was seen to wait for 215 ms while a
worker loaded its libraries; a little longer, and it would have been taken for dead. Its niceness changes nothing there,
since that counts within a session or a container only.
"""

from __future__ import annotations

import logging
import os
import sys
from enum import Enum
from typing import Final

from millstream.processor.event_log import EventLog

_log: Final = EventLog(logging.getLogger("millstream.node"))

# The least that comes before every ordinary process.
_REAL_TIME_PRIORITY: Final = 1


class Precedence(Enum):
    """How the agent stands among processes that want a core: before ordinary ones, like them, or as somebody chose."""

    REAL_TIME = "real-time"
    ORDINARY = "ordinary"
    CHOSEN = "chosen"


def take_precedence() -> Precedence:
    """Let this thread run whenever it wants to, if it may ask for that; the log is told what came of it.

    Threads and processes that it starts afterwards are ordinary. Whoever has chosen a scheduling policy or a niceness
    for the agent keeps it. Only Linux has more than an ordinary place.
    """
    if sys.platform != "linux":
        return Precedence.ORDINARY
    if os.sched_getscheduler(0) != os.SCHED_OTHER or os.getpriority(os.PRIO_PROCESS, 0) != 0:
        _log.info("agent.precedence", precedence=Precedence.CHOSEN.value)
        return Precedence.CHOSEN
    try:
        os.sched_setscheduler(0, os.SCHED_RR | os.SCHED_RESET_ON_FORK, os.sched_param(_REAL_TIME_PRIORITY))
    except OSError as error:
        _log.info(
            "agent.precedence",
            precedence=Precedence.ORDINARY.value,
            why=f"real-time priority {_REAL_TIME_PRIORITY} was refused ({error.strerror}), so beats may be late on a "
            "full machine; allow it by a limit (ulimit -r 1, LimitRTPRIO=1) or by CAP_SYS_NICE",
        )
        return Precedence.ORDINARY
    _log.info("agent.precedence", precedence=Precedence.REAL_TIME.value)
    return Precedence.REAL_TIME
