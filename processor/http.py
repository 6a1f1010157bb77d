"""A small HTTP server in the agent's event loop: GET of a few pages, one request a connection.

It answers from the loop itself, so that an answer from `/healthz` proves that the loop is alive. What strangers send
is bounded in size, time and number.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from types import TracebackType
from typing import Final, Self, TypeAlias

from millstream.processor.errors import SettingsError

_REQUEST_BYTES_MAX: Final = 8 << 10
_REQUEST_TIMEOUT_S: Final = 5.0
_CONNECTIONS_MAX: Final = 32


@dataclass(frozen=True, slots=True)
class Page:
    """An answer."""

    body: bytes
    content_type: str = "text/plain; charset=utf-8"
    status: HTTPStatus = HTTPStatus.OK


PageMaker: TypeAlias = Callable[[], Page | Awaitable[Page]]
"""Makes a page, at once or with turns for others in between."""


def bind(address: str) -> socket.socket | None:
    """A listening socket for `host:port` (port 0: any that is free), or None for `off`.

    Raises SettingsError where the address makes no sense or is taken.
    """
    if address == "off":
        return None
    host, separator, port = address.rpartition(":")
    if not separator or not port.isascii() or not port.isdecimal() or int(port) > 65535:
        raise _mistake(address, "it must be host:port such as 127.0.0.1:9100, or off")
    try:
        family, _, _, _, where = socket.getaddrinfo(
            host.strip("[]") or None, int(port), type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        return socket.create_server(where[:2], family=family, backlog=_CONNECTIONS_MAX)
    except (OSError, UnicodeError) as error:
        raise _mistake(
            address, f"cannot listen there: {error}; name another address with --http, or --http off"
        ) from error


def _mistake(address: str, reason: str) -> SettingsError:
    return SettingsError("the node cannot start", [f"--http {address}: {reason}"])


class HttpServer:
    """Serves `pages` on a listening socket between `async with` and its end; the socket is closed then."""

    def __init__(self, listener: socket.socket, pages: Mapping[str, PageMaker]) -> None:
        self._listener = listener
        self._pages = pages
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._serve, sock=self._listener, limit=_REQUEST_BYTES_MAX)
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if self._server is not None:
            self._server.close()
            for writer in self._writers:
                writer.transport.abort()
            await self._server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._writers) >= _CONNECTIONS_MAX:
            writer.transport.abort()
            return
        self._writers.add(writer)
        try:
            async with asyncio.timeout(_REQUEST_TIMEOUT_S):
                request = await reader.readuntil(b"\r\n\r\n")
                writer.write(_response(await self._answer(request)))
                await writer.drain()
                writer.close()
                await writer.wait_closed()
        except (TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ConnectionError):
            writer.transport.abort()
        finally:
            self._writers.discard(writer)

    async def _answer(self, request: bytes) -> Page:
        words = request.split(b"\r\n", 1)[0].split(b" ")
        if len(words) != 3:
            return Page(b"this is not HTTP\n", status=HTTPStatus.BAD_REQUEST)
        if words[0] != b"GET":
            return Page(b"only GET is answered here\n", status=HTTPStatus.METHOD_NOT_ALLOWED)
        page = self._pages.get(words[1].split(b"?", 1)[0].decode("latin-1"))
        if page is None:
            known = "\n".join(sorted(self._pages))
            return Page(f"there is no such page; there are\n{known}\n".encode(), status=HTTPStatus.NOT_FOUND)
        made = page()
        return made if isinstance(made, Page) else await made


def _response(page: Page) -> bytes:
    head = (
        f"HTTP/1.1 {page.status.value} {page.status.phrase}\r\n"
        f"Content-Type: {page.content_type}\r\n"
        f"Content-Length: {len(page.body)}\r\n"
        "Connection: close\r\n\r\n"
    )
    return head.encode("ascii") + page.body
