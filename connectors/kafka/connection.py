"""One connection to one broker: aiokafka's, with requests of our own.

aiokafka brings the socket, TLS, SASL and the framing; `_Call` is what its connection asks of a request. Answers are
parsed after they left aiokafka's reader, so that a malformed one fails its caller and not the reader.
"""

from __future__ import annotations

import asyncio
import functools
import io
import ssl
import struct
from collections.abc import Awaitable
from typing import TypeVar

import aiokafka.errors as aiokafka_errors
from aiokafka.conn import AIOKafkaConnection, create_conn

from millstream.connectors.kafka.requests import ApiVersionsRequest, Request
from millstream.connectors.kafka.settings import KafkaSettings
from millstream.connectors.kafka.wire import ProtocolError, Reader, Writer
from millstream.processor.errors import RefusedError, UnavailableError

R = TypeVar("R")

_API = struct.Struct(">hhi")

_REFUSALS = (
    aiokafka_errors.AuthenticationFailedError,
    aiokafka_errors.SaslAuthenticationFailed,
    aiokafka_errors.UnsupportedSaslMechanismError,
    aiokafka_errors.IllegalSaslStateError,
    ssl.SSLCertVerificationError,
)


@functools.cache
def _client_part(client_id: str) -> bytes:
    """What every request's header ends with."""
    writer = Writer()
    writer.plain_string(client_id)
    writer.no_tags()
    return writer.finish()


class _Call:
    """A request in the shape that `AIOKafkaConnection.send` works with."""

    def __init__(self, request: Request[object]) -> None:
        self._request = request
        self.correlation_id = 0

    @property
    def RESPONSE_TYPE(self) -> _Call:  # noqa: N802 - aiokafka's name for who decodes the answer
        # Not an attribute: a call that held itself would keep its request, and the batches in it, until some later
        # garbage collection; at hundreds of requests a second that is a hundred megabytes.
        return self

    def prepare(self, versions: dict[int, tuple[int, int]]) -> _Call:
        key, version = self._request.API_KEY, self._request.API_VERSION
        oldest, newest = versions.get(key, (0, -1))
        if not oldest <= version <= newest:
            raise RefusedError(
                f"the broker does not speak version {version} of request {key} "
                f"({type(self._request).__name__}); millstream needs Apache Kafka 4.0 or later"
            )
        return self

    def build_request_header(self, *, correlation_id: int, client_id: str) -> _EncodedHeader:
        api = _API.pack(self._request.API_KEY, self._request.API_VERSION, correlation_id)
        return _EncodedHeader(api + _client_part(client_id))

    def encode(self) -> bytes:
        writer = Writer()
        self._request.write(writer)
        return writer.finish()

    def parse_response_header(self, answer: io.BytesIO) -> _Call:
        (self.correlation_id,) = struct.unpack(">i", answer.read(4))
        return self

    def decode(self, answer: io.BytesIO) -> bytes:
        # getvalue shares the bytes that aiokafka read from the socket: no copy.
        return answer.getvalue()


class _EncodedHeader:
    def __init__(self, encoded: bytes) -> None:
        self._encoded = encoded

    def encode(self) -> bytes:
        return self._encoded


class Connection:
    """An open connection. Requests are answered in the order in which they were sent."""

    def __init__(self, connection: AIOKafkaConnection, address: str) -> None:
        self._connection = connection
        self._address = address

    @staticmethod
    async def open(host: str, port: int, settings: KafkaSettings) -> Connection:
        """Connect and authenticate. Raises RefusedError for credentials, UnavailableError for the rest."""
        address = f"{host}:{port}"
        try:
            connection = await create_conn(host, port, **settings.connection_arguments())
        except _REFUSALS as error:
            raise RefusedError(f"{address} refused the connection: {error or type(error).__name__}") from error
        except (TimeoutError, OSError, aiokafka_errors.KafkaError, AssertionError) as error:
            raise UnavailableError(f"no connection to {address}: {error or type(error).__name__}") from error
        return Connection(connection, address)

    @property
    def usable(self) -> bool:
        """False once the connection is closed or lost."""
        return bool(self._connection.connected())

    async def call(self, request: Request[R], *, timeout_s: float) -> R:
        """Send a request and wait for its answer.

        The bytes are on their way before the first suspension, so that calls started one after the other are also
        answered in that order. A call that times out closes the connection: what would be answered later is
        then nobody's. Raises UnavailableError, or RefusedError where the broker lacks the request's version.
        """
        call = _Call(request)
        try:
            # Not wait_for: before Python 3.12 it can swallow a cancellation that meets the answer, and a task that
            # was to end goes on (tests/broker/test_engine_trouble.py, of two owners, hung on it).
            async with asyncio.timeout(timeout_s):
                answer = await self._sent(call)
        except TimeoutError as error:
            self.close()
            raise UnavailableError(
                f"{self._address} did not answer {type(request).__name__} within {timeout_s:g} s"
            ) from error
        except (OSError, aiokafka_errors.KafkaError) as error:
            self.close()
            raise UnavailableError(f"connection to {self._address} lost: {error or type(error).__name__}") from error
        except asyncio.CancelledError:
            # A request that nobody waits for any more would hold up the ones after it.
            self.close()
            raise
        reader = Reader(answer)
        try:
            reader.int32()
            # The answer to ApiVersions has the old header, so that clients of any age can read it.
            if request.API_KEY != ApiVersionsRequest.API_KEY:
                reader.skip_tags()
            return request.read(reader)
        except ProtocolError as error:
            self.close()
            raise UnavailableError(
                f"{self._address} answered {type(request).__name__} with something else: {error}"
            ) from error

    def _sent(self, call: _Call) -> Awaitable[bytes]:
        try:
            answer: Awaitable[bytes] = self._connection.send(call)
        except RuntimeError as error:
            # uvloop's, where the other side has closed and aiokafka's reader has not been told yet.
            raise ConnectionResetError(str(error)) from error
        return answer

    def close(self) -> None:
        """Close now; what is under way fails with UnavailableError."""
        self._connection.close()
