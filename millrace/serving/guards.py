"""Guards: what is refused before any of it is read, and the headers of every answer.

A page of another site cannot ask (its `Origin` and `Sec-Fetch-Site` say where it is from), nor one
whose name was made to mean 127.0.0.1 (its `Host` says so). Bodies are JSON, small and in time.
"""

import asyncio
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from contextlib import suppress
from typing import Any

import msgspec

from millrace.serving.refusals import RefusedError

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Asgi = Callable[[Message, Receive, Send], Awaitable[None]]

BODY_BYTES_MAX = 2**20
BODY_S = 5.0  # within which a body has to have come
TARGET_BYTES_MAX = 2000
DRAINED_BYTES_MAX, DRAINED_S = 2**25, 1.0  # of a body that is refused
METHODS = ("GET", "HEAD", "POST", "DELETE")
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self' data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


class Guards:
    """ASGI application in front of another: checks a request, reads its body, adds headers.

    Parameters
    ----------
    app : callable
        The application behind it.
    port : int
        Of this server: hosts and origins name it.
    """

    def __init__(self, app: Asgi, port: int) -> None:
        self._app = app
        self._hosts = {f"127.0.0.1:{port}", f"localhost:{port}"}
        if port == 80:
            self._hosts |= {"127.0.0.1", "localhost"}

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer a request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                message["headers"] = _with_headers(message.get("headers", ()))
            await send(message)

        unread = _Unread(receive)
        try:
            self._check(scope)
            body = await _body(scope, unread.receive)
            await self._app(scope, _replayed(body, receive), send_with_headers)
        except RefusedError as refused:
            await unread.drain()
            await _refuse(refused, send_with_headers)
        except Exception as error:  # a bug: said in one line here, and in one sentence there
            print(f"millrace: a bug: {type(error).__name__}: {error}", file=sys.stderr)
            if not started:
                sentence = f"a bug in Millrace: {type(error).__name__}"
                await _refuse(RefusedError(sentence, 500), send_with_headers)

    def _check(self, scope: Message) -> None:
        """Raise RefusedError unless a request is of this server's own page."""
        headers: dict[str, list[str]] = {}
        for name, value in scope["headers"]:
            headers.setdefault(name.decode("latin-1").lower(), []).append(value.decode("latin-1"))
        hosts = headers.get("host", [])
        if len(hosts) != 1 or hosts[0].lower() not in self._hosts:
            named = f"`{hosts[0]:.60}`" if hosts else "no host"
            raise RefusedError(
                f"this server answers to {' and '.join(sorted(self._hosts))} alone; the request "
                f"names {named}",
                status=421,
            )
        origins = {f"http://{host}" for host in self._hosts}
        for origin in headers.get("origin", []):
            if origin.lower() not in origins:
                raise RefusedError(
                    f"pages of `{origin:.60}` may not ask this server: open its own page",
                    status=403,
                )
        site = headers.get("sec-fetch-site", ["none"])
        opened = scope["path"] == "/" and headers.get("sec-fetch-mode") == ["navigate"]
        if site not in (["none"], ["same-origin"]) and not opened:
            raise RefusedError(
                "pages of other sites may not ask this server: open its own page", status=403
            )
        if scope["method"] not in METHODS:
            raise RefusedError(
                f"the method {scope['method']:.20} is not answered: {', '.join(METHODS)} are",
                status=405,
            )
        if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > TARGET_BYTES_MAX:
            raise RefusedError(
                f"the address has more than {TARGET_BYTES_MAX} bytes: questions are sent as JSON "
                f"in the body",
                status=414,
            )
        _check_body(scope["method"], headers)


def _check_body(method: str, headers: dict[str, list[str]]) -> None:
    """Raise RefusedError for a body that is none, of another kind, or too long by its own word."""
    lengths = headers.get("content-length", ["0"])
    if any(text.isdigit() and int(text[:12]) > BODY_BYTES_MAX for text in lengths):
        raise _too_long()
    if method != "POST":
        return
    kind = headers.get("content-type", [""])[0].partition(";")[0].strip().lower()
    if kind != "application/json":
        raise RefusedError(
            f"the body is of type `{kind:.60}`: send JSON, as `content-type: application/json`",
            status=415,
        )


def _too_long() -> RefusedError:
    return RefusedError(
        f"the body has more than {BODY_BYTES_MAX:,} bytes, which no question needs", status=413
    )


async def _body(scope: Message, receive: Receive) -> bytes:
    """Body of a request, read as far as it may be long, and within its time."""
    body = bytearray()

    async def read() -> None:
        while True:
            message = await receive()
            if message["type"] != "http.request":
                raise RefusedError("the request broke off before its body had come", 400)
            body.extend(message.get("body", b""))
            if len(body) > BODY_BYTES_MAX:
                raise _too_long()
            if not message.get("more_body"):
                return

    try:
        await asyncio.wait_for(read(), BODY_S)
    except TimeoutError:
        raise RefusedError(
            f"the body did not come within {BODY_S:.0f} s: send it at once", status=408
        ) from None
    if body and scope["method"] == "POST":
        _check_depth(bytes(body))
    return bytes(body)


def _check_depth(body: bytes) -> None:
    """Raise RefusedError for a body that is no JSON, by a decoder that bounds how deep it goes."""
    try:
        msgspec.json.decode(body)
    except RecursionError:
        raise RefusedError("the body's values are nested too deep", status=400) from None
    except (ValueError, OverflowError) as wrong:
        raise RefusedError(f"the body is no JSON: {wrong!s:.120}", status=400) from None


class _Unread:
    """Rest of a request that has not come yet: a connection closed before it loses the answer."""

    def __init__(self, receive: Receive) -> None:
        self._receive = receive
        self._more = True

    async def receive(self) -> Message:
        """The next message of the request."""
        message = await self._receive()
        self._more = message["type"] == "http.request" and bool(message.get("more_body"))
        return message

    async def drain(self) -> None:
        """Read on and keep nothing, as long as that is neither much nor slow."""

        async def read() -> None:
            left = DRAINED_BYTES_MAX
            while self._more and left > 0:
                left -= len((await self.receive()).get("body", b""))

        with suppress(TimeoutError):
            await asyncio.wait_for(read(), DRAINED_S)


def _replayed(body: bytes, receive: Receive) -> Receive:
    """Function that gives a body that was read, and then what comes behind it."""
    messages: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replay() -> Message:
        return messages.pop() if messages else await receive()

    return replay


def _with_headers(headers: Iterable[tuple[bytes, bytes]]) -> list[tuple[bytes, bytes]]:
    """Headers of an answer, and those that all answers have where it has none of its own."""
    named = list(headers)
    there = {name.lower() for name, _ in named}
    named += [
        (name.encode(), value.encode())
        for name, value in HEADERS.items()
        if name.encode() not in there
    ]
    return named


async def _refuse(refused: RefusedError, send: Send) -> None:
    """Answer with a sentence; the connection is closed, for what follows may be a body."""
    body = msgspec.json.encode(refused.document)
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
        (b"connection", b"close"),
    ]
    await send({"type": "http.response.start", "status": refused.status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
