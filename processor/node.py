"""A node as a program: an agent in an event loop of its own, with the signals that a service manager sends."""

from __future__ import annotations

import asyncio
import gc
import signal
from typing import Final

from millstream.processor.actions import Outcome
from millstream.processor.agent import Agent, HostFactory, MembershipLogs
from millstream.processor.device_desk import NodeDevices
from millstream.processor.event_loop import new_event_loop
from millstream.processor.http import bind
from millstream.processor.messages import tell
from millstream.processor.node_settings import NodeSettings
from millstream.processor.participation import NodePlace
from millstream.processor.precedence import take_precedence

_STOP_SIGNALS: Final = (signal.SIGTERM, signal.SIGINT)


def run_node(
    settings: NodeSettings,
    factory: HostFactory,
    place: NodePlace,
    membership_logs: MembershipLogs,
    *,
    http: str = "off",
    log_level: str = "info",
    max_seconds: float | None = None,
    devices: NodeDevices | None = None,
) -> Outcome:
    """Run a node until it ends, drained after `max_seconds` or by SIGTERM or SIGINT.

    A second signal cuts the drain short. `http` is `host:port` or `off`. Call it in the main thread. Raises
    SettingsError, before anything is started, where the HTTP address cannot be had.
    """
    listener = bind(http)
    precedence = take_precedence()
    # What is loaded by now stays: no collection need look at it again, which would hold up beats.
    gc.freeze()

    async def run() -> Outcome:
        agent = Agent(
            settings,
            factory,
            place,
            membership_logs,
            listener=listener,
            log_level=log_level,
            precedence=precedence,
            devices=devices,
        )
        loop = asyncio.get_running_loop()
        for stop_signal in _STOP_SIGNALS:
            loop.add_signal_handler(stop_signal, agent.request_stop, int(stop_signal))
        timer = loop.call_later(max_seconds, agent.request_stop) if max_seconds is not None else None
        try:
            return await agent.run()
        finally:
            if timer is not None:
                timer.cancel()

    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(run())


def report(outcome: Outcome) -> int:
    """Tell the user what there is to tell, once; answers the exit code."""
    tell(outcome.message)
    return outcome.exit_code
