"""The permissions that docs/operations.md lists are enough, and each of them is needed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)
from outside import Outside

from millstream.connectors.kafka.development_broker import BrokerSecurity, DevelopmentBroker
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.processor import Pipeline
from millstream.processor.errors import RefusedError

pytestmark = [pytest.mark.broker, pytest.mark.timeout(180)]

OPERATIONS = Path(__file__).parents[2] / "docs" / "operations.md"
USER, PASSWORD = "pipeline", "only-for-this-test"
Permission = tuple[str, str, str]


@pytest.fixture(scope="module")
def guarded() -> Iterator[DevelopmentBroker]:
    """A broker that lets the user do nothing but what it was given; whoever comes by the plain listener may do all."""
    properties = {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    security = BrokerSecurity(sasl_users={USER: PASSWORD})
    with DevelopmentBroker(heap_mb=512, properties=properties, security=security) as started:
        yield started


def listed(name: str, source: str, target: str) -> list[Permission]:
    """(kind, name, operation) of all that the document's table says is needed, for this pipeline."""
    (table,) = re.findall(r"<!-- permissions -->\n(.*?)\n\n", OPERATIONS.read_text(), re.DOTALL)
    permissions = []
    for row in table.splitlines()[2:]:
        resource, needed, *_ = (cell.strip() for cell in row.strip("|").split("|"))
        kind, _, pattern = resource.partition(" ")
        pattern = pattern.strip("`").replace("<input>", source).replace("<output>", target).replace("<name>", name)
        permissions += [(kind, pattern, operation) for operation in needed.split(", ")]
    return permissions


def grant(broker: DevelopmentBroker, permissions: Sequence[Permission]) -> None:
    """Give the user these permissions and no others."""
    admin = AdminClient({"bootstrap.servers": broker.bootstrap, "log_level": 0})
    everything = AclBindingFilter(
        ResourceType.ANY, None, ResourcePatternType.ANY, None, None, AclOperation.ANY, AclPermissionType.ANY
    )
    for future in admin.delete_acls([everything]).values():
        future.result(20)
    for future in admin.create_acls([_binding(*permission) for permission in permissions]).values():
        future.result(20)


def _binding(kind: str, name: str, operation: str) -> AclBinding:
    kinds = {
        "topic": ResourceType.TOPIC,
        "group": ResourceType.GROUP,
        "transactional-id": ResourceType.TRANSACTIONAL_ID,
    }
    pattern = ResourcePatternType.PREFIXED if name.endswith("*") else ResourcePatternType.LITERAL
    return AclBinding(
        kinds[kind],
        name.removesuffix("*"),
        pattern,
        f"User:{USER}",
        "*",
        AclOperation[operation.upper()],
        AclPermissionType.ALLOW,
    )


async def run(broker: DevelopmentBroker, name: str, source: str, target: str) -> int:
    """Run a pipeline that uses everything, as the user; the number of dead letters."""
    pipeline = Pipeline(name, on_error="dead-letter")
    pipeline.read(source, dict).write(target, key=lambda event: event["key"])
    settings = KafkaSettings(
        brokers=(broker.sasl_bootstrap,),
        security_protocol="SASL_PLAINTEXT",
        sasl_mechanism="PLAIN",
        sasl_username=USER,
        sasl_password=PASSWORD,
    )
    return (await pipeline.run(brokers=settings, until="caught-up", timeout_s=60)).counts.dead_letters


async def test_what_the_document_lists_is_enough_and_nothing_of_it_is_too_much(
    guarded: DevelopmentBroker, unique: Callable[[str], str]
) -> None:
    outside = Outside(guarded.bootstrap, unique)
    source, target = await asyncio.to_thread(outside.topic, "in"), await asyncio.to_thread(outside.topic, "out")
    await asyncio.to_thread(outside.send, source, [(b"k", b'{"key":"a"}'), (b"k", b"not JSON")])
    name = unique("enough")
    await asyncio.to_thread(grant, guarded, listed(name, source, target))
    assert await run(guarded, name, source, target) == 1
    for number, missing in enumerate(listed("", source, target)):
        name = unique(f"without-{number}")
        all_of_them = listed(name, source, target)
        await asyncio.to_thread(grant, guarded, all_of_them[:number] + all_of_them[number + 1 :])
        print(f"without {missing}")
        with pytest.raises(RefusedError, match="AUTHORIZATION_FAILED"):
            await run(guarded, name, source, target)
