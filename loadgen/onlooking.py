"""A pipeline's membership, watched from outside in a thread of its own: for programs that wait for other things."""

from __future__ import annotations

import asyncio
import copy
import threading
from dataclasses import replace
from types import TracebackType
from typing import Final, Self

from millstream.connectors.kafka.onlooker import Sight, watch
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.processor.event_loop import new_event_loop

_REFRESH_S: Final = 0.1
_END_S: Final = 10.0


class Onlooking:
    """A context manager: inside of it `sight` is what was seen last, and does not change any more; None before that.

    The pipeline has to be there, or have been.
    """

    def __init__(self, kafka: KafkaSettings, pipeline: str) -> None:
        self._kafka = kafka
        self._pipeline = pipeline
        self._loop: asyncio.AbstractEventLoop | None = None
        self._looking: asyncio.Task[None] | None = None
        self._begun = threading.Event()
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="onlooker", daemon=True)
        self.sight: Sight | None = None

    def __enter__(self) -> Self:
        self._thread.start()
        self._begun.wait(_END_S)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._loop is not None and self._looking is not None:
            try:
                self._loop.call_soon_threadsafe(self._looking.cancel)
            except RuntimeError:
                # It has ended by itself, and its loop is closed.
                pass
        self._thread.join(_END_S)

    def check(self) -> None:
        """Raises what ended the watching, where something did."""
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=new_event_loop) as runner:
                runner.run(self._look())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._error = error
        finally:
            self._begun.set()

    async def _look(self) -> None:
        self._loop, self._looking = asyncio.get_running_loop(), asyncio.current_task()
        self._begun.set()
        await watch(self._kafka, self._pipeline, self._show, refresh_s=_REFRESH_S, seconds=None)

    def _show(self, sight: Sight) -> None:
        # The story goes on growing in this thread while others read what is handed out.
        self.sight = replace(sight, story=copy.deepcopy(sight.story))
