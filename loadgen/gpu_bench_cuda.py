"""What a CUDA device does by itself, without millstream between: copies, the floor of a batch, a cold start.

    python -m millstream.loadgen.gpu_bench_cuda copies|floor|start 0

A process of its own for each, which prints one object of JSON; a device that is lost ends with it.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import orjson

_COPY_BYTES = tuple(1 << power for power in range(10, 29, 2))
_IN, _OUT = 1 << 16, 1 << 12
_FLOOR_RUNS = 5000
_ADD = 'extern "C" __global__ void scaled(const float* x, float* y) { int i = threadIdx.x; y[i] = 2.0f * x[i]; }'


def copies(cupy: Any) -> dict[str, object]:
    """Host to device, from pinned and from pageable memory, with the line through the medians."""
    runtime = cupy.cuda.runtime
    properties = runtime.getDeviceProperties(cupy.cuda.Device().id)
    found: dict[str, object] = {
        "device": properties["name"].decode(),
        "driver": runtime.driverGetVersion(),
        "runtime": runtime.runtimeGetVersion(),
        "cupy": cupy.__version__,
    }
    stream = cupy.cuda.Stream(non_blocking=True)
    for kind in ("pinned", "pageable"):
        points = []
        for size in _COPY_BYTES:
            host = _pinned(cupy, size) if kind == "pinned" else np.ones(size, np.uint8)
            target = cupy.empty(size, np.uint8)

            def copy(target: Any = target, host: Any = host) -> None:
                target.set(host, stream=stream)
                stream.synchronize()

            points.append((size, float(np.median(_timed(copy, 50 if size < 1 << 24 else 10)))))
        sizes, times = (np.array(column, dtype=np.float64) for column in zip(*points, strict=True))
        per_byte, fixed = np.polyfit(sizes, times, 1)
        left = np.sum((times - fixed - per_byte * sizes) ** 2)
        found[kind] = {
            "fixed_us": fixed * 1e6,
            "gb_per_s": 1e-9 / per_byte,
            "r_squared": 1.0 - left / np.sum((times - times.mean()) ** 2),
            "points_us": {str(size): seconds * 1e6 for size, seconds in points},
        }
    return found


def floor(cupy: Any) -> dict[str, object]:
    """64 KB in, one small kernel, 4 KB out, and a wait: in four ways of launching it."""
    stream = cupy.cuda.Stream(non_blocking=True)
    host_in, host_out = _pinned(cupy, _IN), _pinned(cupy, _OUT)
    given, answer = cupy.empty(_IN, np.uint8), cupy.empty(_OUT // 4, np.float32)
    floats = given.view(np.float32)[: len(answer)]
    found: dict[str, object] = {}
    with stream:
        for name, launch in _launches(cupy, floats, answer).items():

            def batch(launch: Callable[[], None] = launch) -> None:
                given.set(host_in, stream=stream)
                launch()
                answer.get(stream=stream, out=host_out.view(np.float32), blocking=False)
                stream.synchronize()

            times = np.array(_timed(batch, _FLOOR_RUNS)) * 1e6
            found[name] = {"p50_us": float(np.quantile(times, 0.5)), "p99_us": float(np.quantile(times, 0.99))}
    return found


def _launches(cupy: Any, given: Any, answer: Any) -> dict[str, Callable[[], None]]:
    elementwise = cupy.ElementwiseKernel("float32 x", "float32 y", "y = 2 * x", "doubled")
    raw = cupy.RawKernel(_ADD, "scaled")
    ways: dict[str, Callable[[], None]] = {
        "elementwise": lambda: elementwise(given, answer),
        "raw": lambda: raw((1,), (len(answer),), (given, answer)),
    }
    ways["raw"]()
    capturing = cupy.cuda.Stream(non_blocking=True)
    with capturing:
        capturing.begin_capture()
        ways["raw"]()
        graph = capturing.end_capture()
    ways["graph"] = lambda: graph.launch(cupy.cuda.get_current_stream())
    try:
        from numba import cuda

        @cuda.jit  # type: ignore[untyped-decorator]
        def doubled(x: Any, y: Any) -> None:
            place = cuda.grid(1)
            if place < y.shape[0]:
                y[place] = 2 * x[place]

        ways["numba"] = lambda: doubled[1, len(answer), cuda.external_stream(cupy.cuda.get_current_stream().ptr)](
            given, answer
        )
        ways["numba"]()
    except Exception as error:  # without its own packages numba raises whatever its loader does
        print(f"numba.cuda is left out: {type(error).__name__}", file=sys.stderr)
        ways.pop("numba", None)
    return ways


def start(cupy: Any, imported_s: float) -> dict[str, object]:
    """Seconds by phase, from the beginning of the import: the context, the first kernel of CuPy's, one of one's own."""
    begun = time.perf_counter()
    cupy.cuda.runtime.free(0)
    context_s = time.perf_counter() - begun
    begun = time.perf_counter()
    cupy.arange(1024, dtype=np.float32).sum().get()
    first_s = time.perf_counter() - begun
    begun = time.perf_counter()
    cupy.RawKernel(_ADD.replace("scaled", f"scaled{int(time.time())}"), f"scaled{int(time.time())}").compile()
    return {
        "import_s": imported_s,
        "context_s": context_s,
        "first_kernel_s": first_s,
        "compile_s": time.perf_counter() - begun,
    }


def _pinned(cupy: Any, size: int) -> Any:
    memory = cupy.cuda.alloc_pinned_memory(size)
    return np.frombuffer(memory, np.uint8, size)


def _timed(function: Callable[[], None], runs: int) -> list[float]:
    for _ in range(min(20, runs)):
        function()
    times = []
    for _ in range(runs):
        begun = time.perf_counter()
        function()
        times.append(time.perf_counter() - begun)
    return times


def main(what: str, number: int) -> None:
    """Run one of them on the device with this number and print it."""
    begun = time.perf_counter()
    import cupy

    imported_s = time.perf_counter() - begun
    cupy.cuda.Device(number).use()
    found = {"copies": copies, "floor": floor}[what](cupy) if what != "start" else start(cupy, imported_s)
    print(orjson.dumps(found).decode())


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
