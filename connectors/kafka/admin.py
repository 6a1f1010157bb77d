"""Topics: whether they exist, creating them, and the size of what they take."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from millstream.connectors.kafka.admin_requests import CreateTopicsRequest, DescribeTopicSettingRequest, NewTopic
from millstream.connectors.kafka.cluster import Cluster, retry_pause_s
from millstream.connectors.kafka.error_codes import Code, error_for
from millstream.processor.errors import UnavailableError

# Kafka's own default (1 MiB and the batch's overhead), used where the setting may not be read.
_MESSAGE_BYTES_MAX_DEFAULT = 1_048_588
_MESSAGE_BYTES_MAX = "max.message.bytes"


class Admin:
    """Administration through one cluster's connections."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def missing(self, topics: Iterable[str]) -> list[str]:
        """Those of the topics that do not exist. Raises RefusedError for one that may not be seen."""
        topics = list(dict.fromkeys(topics))
        self._cluster.track(topics)
        await self._cluster.refresh()
        missing = []
        for topic in topics:
            code = self._cluster.topic_error(topic)
            if code == Code.UNKNOWN_TOPIC_OR_PARTITION:
                missing.append(topic)
            elif code not in (Code.NONE, Code.LEADER_NOT_AVAILABLE):
                raise error_for(code, f"looking for topic {topic}")
        return missing

    async def create(self, topics: Sequence[NewTopic]) -> None:
        """Create topics; one that exists already is left as it is.

        Raises RefusedError where that is not allowed, UnavailableError where the cluster can't do it now.
        """
        timeout_ms = int(self._cluster.request_timeout_s * 1000)
        answers = await self._cluster.call_any(CreateTopicsRequest(topics, timeout_ms))
        for answer in answers:
            if answer.error not in (Code.NONE, Code.TOPIC_ALREADY_EXISTS):
                raise error_for(answer.error, f"creating topic {answer.name}", answer.message)
        self._cluster.track(topic.name for topic in topics)
        await self._until_seen([topic.name for topic in topics])

    async def _until_seen(self, topics: Sequence[str]) -> None:
        """Wait until the brokers show the topics, which takes them some milliseconds after the controller's answer."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._cluster.request_timeout_s
        tries = 0
        while True:
            await self._cluster.refresh()
            unseen = [topic for topic in topics if self._cluster.topic(topic) is None]
            if not unseen:
                return
            if loop.time() >= deadline:
                raise UnavailableError(f"topics {', '.join(unseen)} were created, and no broker shows them yet")
            await asyncio.sleep(retry_pause_s(tries))
            tries += 1

    async def message_bytes_max(self, topics: Sequence[str]) -> Mapping[str, int]:
        """The largest record batch that each topic takes, in bytes.

        Where the setting may not be read, Kafka's default is assumed: a larger batch is then refused by the broker,
        and nothing is lost.
        """
        if not topics:
            return {}
        try:
            found = await self._cluster.call_any(DescribeTopicSettingRequest(topics, _MESSAGE_BYTES_MAX))
        except UnavailableError:
            found = []
        known = {s.topic: int(s.value) for s in found if s.error == Code.NONE and s.value and s.value.isdecimal()}
        return {topic: known.get(topic, _MESSAGE_BYTES_MAX_DEFAULT) for topic in topics}
