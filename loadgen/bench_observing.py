"""What it costs to be watched: a node's CPU time with metrics, status and log lines, against the same without.

CPU time rather than time: two runs of the same thing differ by more than a few per cent in time on a shared machine.
What starting and ending cost is taken off by a second, short run of each.
"""

from __future__ import annotations

import resource
import subprocess
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from millstream.connectors.kafka.broker_ports import free_ports
from millstream.loadgen.bench_process import Side
from millstream.loadgen.bench_stage import Sample, Stage
from millstream.loadgen.bench_workloads import APP, NAME_VARIABLE, SOURCE_VARIABLE, TARGET_VARIABLE, WORK_VARIABLE, Work
from millstream.loadgen.node_process import MILLSTREAM
from millstream.processor.errors import UnavailableError

_WORK = Work.TYPED_JSON_FUNCTION
_LOOK_S = 1.0
_PAGES = ("metrics", "status", "readyz")


@dataclass(frozen=True, slots=True)
class Observing:
    """A node works a backlog off, watched by a scraper once a second or not at all.

    The baseline's figure is that of two nodes that are both not watched: what chance makes of nothing.
    """

    stage: Stage
    rows: tuple[str, ...] = ("cost_of_observing",)
    runs_max: int | None = None

    def rehearse(self) -> None:
        """One run that is not counted."""
        self._cpu_s(self.stage.inputs.warm_up, self.stage.inputs.warm_up_events, watched=False)

    def measure(self, side: Side) -> Sample:
        """The node's CPU time with and without, as a difference in per cent."""
        without = self._work_cpu_s(watched=False)
        with_ = self._work_cpu_s(watched=side is Side.OURS)
        conditions = {
            "events": self.stage.inputs.events - self.stage.inputs.warm_up_events,
            "work": _WORK.value,
            "watched": f"/{', /'.join(_PAGES)} every {_LOOK_S:g} s, log level info; otherwise no HTTP, level error",
            "cpu_s": round(with_, 3),
            "cpu_s_unwatched": round(without, 3),
        }
        return Sample({"cost_of_observing": 100 * (with_ / without - 1)}, conditions)

    def _work_cpu_s(self, *, watched: bool) -> float:
        inputs = self.stage.inputs
        whole = self._cpu_s(inputs.measured, inputs.events, watched=watched)
        start_alone = self._cpu_s(inputs.warm_up, inputs.warm_up_events, watched=watched)
        return max(whole - start_alone, 1e-6)

    def _cpu_s(self, source: str, events: int, *, watched: bool) -> float:
        place = self.stage.place
        with place.cleared():
            passage = place.passage("observing", source, events)
            names = {
                WORK_VARIABLE: _WORK.value,
                NAME_VARIABLE: passage.name,
                SOURCE_VARIABLE: passage.source,
                TARGET_VARIABLE: passage.target,
            }
            address = f"127.0.0.1:{free_ports(1)[0]}"
            arguments = [APP, "--until", "caught-up", "--max-seconds", f"{self.stage.finish_s_max:g}"]
            arguments += ["--http", address] if watched else ["--http", "off", "--log-level", "error"]
            before = _children_cpu_s()
            with scraped(address if watched else None):
                done = subprocess.run(
                    [*MILLSTREAM, "run", *arguments],
                    env={**self.stage.environ, **names},
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    check=False,
                )
            if done.returncode:
                raise UnavailableError(f"the node ended with code {done.returncode}: {done.stderr.decode()[-2000:]}")
            place.check_written(passage.target, events)
            return _children_cpu_s() - before


@contextmanager
def scraped(address: str | None) -> Iterator[None]:
    """Somebody asks for every page once a second."""
    if address is None:
        yield
        return
    ended = threading.Event()
    scraper = threading.Thread(target=_scrape, args=(address, ended), daemon=True)
    scraper.start()
    try:
        yield
    finally:
        ended.set()
        scraper.join()


def _scrape(address: str, ended: threading.Event) -> None:
    while not ended.wait(_LOOK_S):
        for page in _PAGES:
            try:
                with urllib.request.urlopen(f"http://{address}/{page}", timeout=_LOOK_S) as answer:
                    answer.read()
            except (urllib.error.URLError, TimeoutError, ConnectionError):
                # It has not begun to listen, has ended, or is not ready and says so.
                continue


def _children_cpu_s() -> float:
    """User and system time of all descendants that have ended and were waited for."""
    use = resource.getrusage(resource.RUSAGE_CHILDREN)
    return use.ru_utime + use.ru_stime
