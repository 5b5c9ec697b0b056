"""Five hundred requests that mean no good: each has to be answered by a sentence, with 4xx."""

import json
import random
import socket
from collections.abc import Iterator
from contextlib import suppress
from time import sleep
from typing import Any
from urllib.parse import urlsplit

Request = tuple[bytes, bytes, dict[str, str], bytes | list[bytes]]
"""Method, target, headers, and the body; a list is sent in pieces, a moment apart."""

COUNT = 500
SEED = 41
QUESTION: dict[str, Any] = {"model": "mlp", "cluster": "a100:1x1", "global_batch": 8}
JSON = {"content-type": "application/json"}
PATHS = ("/api/plan", "/api/simulate", "/api/step")
WRONG_VALUES: tuple[Any, ...] = (
    *(None, True, "8", -1, 0, 1.5, 1e308, 2**63, 10**30, [], {}, [8], {"a": 1}, "\0", "x" * 5000),
    *("../../etc/passwd", "os:system", "model.pt2", "/dev/zero", "$(id)", "<script>", "\ud7ff"),
)
TRAVERSALS = (
    *("/page/../http_app.py", "/page/..%2f..%2fcli.py", "/page/%2e%2e/%2e%2e/cli.py"),
    *("/page/....//....//etc/passwd", "/page//etc/passwd", "/../../../../etc/passwd"),
    *("/page/page.js%00.css", "/api/plans/..%2f..%2fetc%2fpasswd", "/api/jobs/../../x"),
    *("/page/..\\..\\cli.py", "/page/%252e%252e%252fcli.py", "/api/plans/*/document"),
    *("/docs", "/redoc", "/static/../../", "/.git/config", "/api/", "/api/plans/", "/%ff%fe"),
)
ORIGINS = (
    *("http://evil.example", "https://127.0.0.1", "http://localhost", "null", "file://", ""),
    *("http://127.0.0.1.evil.example", "http://127.0.0.1:1", "chrome-extension://abc"),
)
HOSTS = (
    *("evil.example", "127.0.0.1", "localhost:1", "127.0.0.1.evil.example", "[::1]", "0.0.0.0"),
    *("localhost.evil.example", "", "127.1", "2130706433"),
)
METHODS = ("PUT", "PATCH", "TRACE", "OPTIONS", "CONNECT", "PROPFIND", "BREW", "X" * 30)
NO_HTTP = (
    *(b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\0" * 200),
    *(b"GET / HTTP/1.1\r\nhost\r\n\r\n", b"hello\r\n\r\n", b"GET / HTTP/1.1\r\n\r\n"),
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: -5\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\ncontent-length: 6\r\n\r\nhello",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: gzip\r\n\r\nhello",
    b"GET / HTTP/1.1\r\nx: " + b"a" * 100_000 + b"\r\n\r\n",
    b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
)


def hostile_requests() -> Iterator[tuple[str, Request | bytes]]:
    """Requests by name; bytes are sent as they are. The same ones every time."""
    requests = [*_wrong_bodies(), *_wrong_questions(), *_wrong_places(), *_strangers()]
    requests += [("no HTTP", text) for text in NO_HTTP]
    rng = random.Random(SEED)
    text = json.dumps(QUESTION).encode()
    while len(requests) < COUNT:
        broken = bytearray(text)
        for _ in range(rng.randint(1, 6)):
            broken[rng.randrange(len(broken))] = rng.choice(b'{}[]",:\0\xff\\x9')
        with suppress(ValueError):
            if isinstance(json.loads(bytes(broken)), dict):
                continue  # it may be a question that makes sense
        requests.append(("broken JSON", (b"POST", b"/api/plan", JSON, bytes(broken))))
    yield from requests[:COUNT]


def _wrong_bodies() -> Iterator[tuple[str, Request]]:
    """Bodies that are no question: not JSON, too deep, too long, too slow."""
    text = json.dumps(QUESTION).encode()
    bodies = [
        *(b"", b"{", b"}", b"nonsense", b"\xff" * 50, b"\0", b"[" * 100_000, b'{"a":' * 50_000),
        *(b'"' + b"x" * 900_000, b"[]", b"7", b"null", b'"text"', text[:-1], text + text),
        *(b"1" * 5000, b"NaN", b'{"model": "mlp"', b"{'model': 'mlp'}", text.replace(b'"', b"`")),
        *(b" " * (2**20 + 1), b"x" * 2**22, b'{"model": "' + b"m" * 2**21 + b'"}'),
    ]
    for path in PATHS:
        for body in bodies:
            yield "body", (b"POST", path.encode(), JSON, body)
    yield "slow body", (b"POST", b"/api/plan", {**JSON, "content-length": "4000"}, [b"{"])
    chunked = {**JSON, "transfer-encoding": "chunked"}
    piece = b"10000\r\n" + b" " * 65536 + b"\r\n"
    yield "endless body", (b"POST", b"/api/plan", chunked, [piece] * 40)
    for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""):
        yield "type of body", (b"POST", b"/api/plan", {"content-type": kind}, text)


def _wrong_questions() -> Iterator[tuple[str, Request]]:
    """JSON of the right form with values of the wrong kind."""
    for field in QUESTION:
        for value in WRONG_VALUES:
            if field in ("model", "cluster") and isinstance(value, str) and len(value) < 64:
                continue  # a question whose search refuses it: tested as such
            yield f"value of {field}", _posted("/api/plan", QUESTION | {field: value})
    for field in ("seq_len", "precision", "pins", "network", "optimize_for"):
        for value in (True, -1, 1e308, 10**30, [1], {"a": {}}, "x" * 5000):
            yield f"value of {field}", _posted("/api/plan", QUESTION | {field: value})
    for pin in ("tp", "pp", "micro_batch", "sequence_parallel", "schedule", "no_such_pin"):
        for value in (-1, 10**30, 1.5, [1], {"a": 1}):
            yield f"pin {pin}", _posted("/api/plan", QUESTION | {"pins": {pin: value}})
    for plan in ("", "x", "../..", "0" * 16, "0" * 17, 7, None, ["0" * 16], "e2b430893144a1bd\n"):
        for path in PATHS[1:]:
            yield "plan", _posted(path, {"plan": plan})
    for change in ("straggler_factor", "jitter", "network", "microbatches", "overlap", "import"):
        for value in (-1, 1e308, "2", True, [2], 10**40):
            yield (
                f"change {change}",
                _posted("/api/simulate", {"plan": "0" * 16, "what_ifs": {change: value}}),
            )


def _posted(path: str, document: Any) -> Request:
    body = json.dumps(document).encode()
    return b"POST", path.encode(), JSON, body


def _wrong_places() -> Iterator[tuple[str, Request]]:
    """Paths that lead nowhere, or out of the page's folder, and methods that nothing answers."""
    for path in TRAVERSALS:
        yield "path", (b"GET", path.encode(), {}, b"")
    for method in METHODS:
        for path in ("/", "/api/plan", "/page/page.js"):
            yield "method", (method.encode(), path.encode(), {}, b"")
    yield "method", (b"GET", b"/api/plan", {}, b"")
    yield "method", (b"DELETE", b"/api/plan", {}, b"")
    yield "method", (b"POST", b"/", JSON, b"{}")
    yield "long address", (b"GET", b"/?" + b"q" * 8000, {}, b"")


def _strangers() -> Iterator[tuple[str, Request]]:
    """Requests of other pages, and of names that were made to mean this machine."""
    text = json.dumps(QUESTION).encode()
    for origin in ORIGINS:
        for path in ("/", "/api/catalogue"):
            yield "origin", (b"GET", path.encode(), {"origin": origin}, b"")
        yield "origin", (b"POST", b"/api/plan", {**JSON, "origin": origin}, text)
    for host in HOSTS:
        for path in ("/", "/api/catalogue", "/openapi.json"):
            yield "host", (b"GET", path.encode(), {"host": host}, b"")
    for site in ("cross-site", "same-site", "nonsense"):
        yield "site", (b"GET", b"/api/catalogue", {"sec-fetch-site": site}, b"")
        yield "site", (b"POST", b"/api/plan", {**JSON, "sec-fetch-site": site}, text)


def sent(address: str, request: Request | bytes) -> tuple[int, str]:
    """Status and sentence of the answer to a request; 0 where there is none.

    Parameters
    ----------
    address : str
        Of the server.
    request : tuple or bytes
        As `hostile_requests` gives it.
    """
    place = urlsplit(address)
    with socket.create_connection((place.hostname, place.port), timeout=30) as connection:
        with suppress(BrokenPipeError, ConnectionResetError):
            if isinstance(request, bytes):
                connection.sendall(request)
            else:
                _send(connection, request, f"{place.hostname}:{place.port}")
        answer = b""
        with suppress(ConnectionResetError, TimeoutError):
            while piece := connection.recv(65536):
                answer += piece
                if _is_complete(answer):
                    break
    head, _, body = answer.partition(b"\r\n\r\n")
    if not head.startswith(b"HTTP/1.1 "):
        return 0, ""
    status = int(head.split()[1])
    try:
        document = json.loads(body)
    except ValueError:
        return status, ""
    return status, str(document.get("error", "") if isinstance(document, dict) else "")


def _send(connection: socket.socket, request: Request, host: str) -> None:
    method, target, headers, body = request
    pieces = body if isinstance(body, list) else [body]
    named = {"host": host, "connection": "close"} | headers
    if body and "transfer-encoding" not in named:
        named.setdefault("content-length", str(sum(map(len, pieces))))
    lines = b"".join(f"{name}: {value}\r\n".encode() for name, value in named.items())
    connection.sendall(method + b" " + target + b" HTTP/1.1\r\n" + lines + b"\r\n")
    for piece in pieces:
        connection.sendall(piece)
        if len(pieces) > 1:
            sleep(0.001)


def _is_complete(answer: bytes) -> bool:
    head, blank, body = answer.partition(b"\r\n\r\n")
    for line in head.lower().split(b"\r\n"):
        if blank and line.startswith(b"content-length:"):
            return len(body) >= int(line.partition(b":")[2])
    return False
