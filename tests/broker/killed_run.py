"""A pipeline run that ends itself with SIGKILL at a named point. Started by the tests as a process of its own.

Arguments: bootstrap, pipeline, source, target, guarantee, request type, point, count. At the `count`-th request of that
type the process dies: `before` its bytes are sent, when they are `sent` and the answer is unread, or when it is
`answered`. With the request type `none` it runs to the end of its input.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from typing import Any

from millstream.connectors.kafka.cluster import Cluster
from millstream.processor import Pipeline


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def arm(request_type: str, point: str, count: int) -> None:
    """Have the process die at that point."""
    original = Cluster.call
    seen = 0

    async def call(self: Cluster, node_id: int, role: Any, request: Any, **arguments: Any) -> Any:
        nonlocal seen
        # Ledger and beats are written and read by the same requests; the engine's own roles are no texts.
        is_membership = isinstance(role, str) and role.startswith(("ledger", "beats"))
        if type(request).__name__ != request_type or is_membership:
            return await original(self, node_id, role, request, **arguments)
        seen += 1
        if seen < count:
            return await original(self, node_id, role, request, **arguments)
        if point == "before":
            die()
        answering = asyncio.ensure_future(original(self, node_id, role, request, **arguments))
        if point == "sent":
            # Two rounds of the loop: the request is written to the socket, and no answer was read.
            await asyncio.sleep(0)
            await asyncio.sleep(0)
            die()
        await answering
        die()
        raise AssertionError

    Cluster.call = call  # type: ignore[method-assign]


def main() -> None:
    bootstrap, name, source, target, guarantee, request_type, point, count = sys.argv[1:]
    if request_type != "none":
        arm(request_type, point, int(count))
    pipeline = Pipeline(name, shards=2, guarantee=guarantee, commit_interval_ms=5)  # type: ignore[arg-type]
    pipeline.read(source).write(target)
    result = asyncio.run(pipeline.run(brokers=bootstrap, until="caught-up", timeout_s=60))
    print(result.counts.records_in)


if __name__ == "__main__":
    main()
