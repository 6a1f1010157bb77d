"""A wall clock that can be stepped, for chosen processes alone. Monotonic clocks go on as they are.

    with WallClock() as clock:
        node = NodeProcess(arguments, clock.environ(os.environ), log_file)
        ...
        struck = clock.step(-3600)    # it is an hour earlier now, for the node and for all that it has started

A library that is loaded before the C library (LD_PRELOAD) adds an offset to what the wall clock says. The offset lies
in memory that is shared with this program, so a step is one store, and takes effect with the next look at the clock.
The machine's C compiler makes it when it is needed. A time namespace cannot do this (it shifts monotonic clocks only);
libfaketime could, by reading a file at every look.

What this cannot do: a thread that waits until a given wall-clock time waits by the kernel's clock. CPython, asyncio and
uvloop wait by monotonic ones.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from millstream.loadgen.moments import Moment, Strike
from millstream.processor.errors import UnavailableError

_COMPILE_S = 60.0
_NS_PER_S = 1_000_000_000
_OFFSET_BYTES = 8
_FILE_VARIABLE = "MILLSTREAM_CLOCK_OFFSET"
_SOURCE = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL

static const volatile int64_t *offset;
static int (*real_clock)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("MILLSTREAM_CLOCK_OFFSET");
    int file = name ? open(name, O_RDONLY | O_CLOEXEC) : -1;
    void *shared = file < 0 ? MAP_FAILED : mmap(0, 8, PROT_READ, MAP_SHARED, file, 0);
    if (shared == MAP_FAILED) {
        fprintf(stderr, "the clock's offset cannot be read from MILLSTREAM_CLOCK_OFFSET=%s\\n", name ? name : "");
        _exit(127);
    }
    close(file);
    offset = shared;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    if (!real_clock) real_clock = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real_clock(clock, at);
    if (failed || !offset || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE)) return failed;
    int64_t ns = at->tv_sec * NS + at->tv_nsec + *offset;
    at->tv_sec = ns / NS;
    at->tv_nsec = ns % NS;
    return 0;
}

int timespec_get(struct timespec *at, int base) {
    return base == TIME_UTC && clock_gettime(CLOCK_REALTIME, at) == 0 ? base : 0;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now)) return -1;
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}
"""


class WallClock:
    """The clock of the processes that are started with its `environ`, and of theirs. A context manager.

    Entering raises UnavailableError without a C compiler. Leave it after the processes have ended.
    """

    def __init__(self, name: str = "wall clock") -> None:
        self._name = name
        self._offset_s = 0.0

    def __enter__(self) -> Self:
        self._directory = tempfile.TemporaryDirectory(prefix="millstream-clock-")
        try:
            directory = Path(self._directory.name)
            self._library = _compiled(directory)
            self._file = directory / "offset"
            self._file.write_bytes(bytes(_OFFSET_BYTES))
            with self._file.open("r+b") as file:
                self._shared = mmap.mmap(file.fileno(), _OFFSET_BYTES)
        except BaseException:
            self._directory.cleanup()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._shared.close()
        self._directory.cleanup()

    def environ(self, environ: Mapping[str, str]) -> dict[str, str]:
        """These variables, and what makes a process follow this clock."""
        before = environ.get("LD_PRELOAD")
        preload = str(self._library) if not before else f"{self._library}:{before}"
        return {**environ, "LD_PRELOAD": preload, _FILE_VARIABLE: str(self._file)}

    @property
    def offset_s(self) -> float:
        """How far the clock is ahead of this machine's, in seconds."""
        return self._offset_s

    def step(self, seconds: float) -> Strike:
        """Step the clock forward, or back where `seconds` is below 0; steps add up."""
        self._offset_s += seconds
        ordered = Moment.now()
        # One aligned store: no process sees half of it.
        ctypes.c_int64.from_buffer(self._shared).value = round(self._offset_s * _NS_PER_S)
        return Strike(f"wall clock stepped by {seconds:+g} s", self._name, ordered, Moment.now())


def _compiled(directory: Path) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise UnavailableError("a wall clock that can be stepped needs a C compiler: apt-get install gcc libc6-dev")
    source, library = directory / "clock.c", directory / "clock.so"
    source.write_text(_SOURCE)
    command = [compiler, "-shared", "-fPIC", "-O2", "-o", str(library), str(source), "-ldl"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_COMPILE_S, check=False)
    if done.returncode != 0:
        raise UnavailableError(
            f"the clock's library was not compiled by {compiler}: {done.stderr.strip()}; apt-get install libc6-dev"
        )
    return library
