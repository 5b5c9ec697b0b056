"""The server: uvicorn on 127.0.0.1, with limits on connections that say nothing."""

import asyncio
import contextlib
import socket
import threading
import webbrowser
from collections.abc import Callable

import h11
import msgspec
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from millrace.serving.guards import HEADERS
from millrace.serving.http_app import create_app

HOST = "127.0.0.1"
HEAD_S = 5.0  # within which the head of a first request has to have come
CONNECTIONS_MAX = 128


class PatientProtocol(H11Protocol):
    """HTTP/1.1 that closes a connection on which no request comes, and says what is wrong."""

    _waiting: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the head of a request."""
        super().connection_made(transport)
        self._waiting = self.loop.call_later(HEAD_S, self._give_up)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop waiting."""
        if self._waiting is not None:
            self._waiting.cancel()
        super().connection_lost(exc)

    def _give_up(self) -> None:
        if self.cycle is None and not self.transport.is_closing():
            with contextlib.suppress(h11.LocalProtocolError):
                self._send_sentence(408, f"no request came within {HEAD_S:.0f} s")
            self.transport.close()

    def send_400_response(self, msg: str) -> None:
        """Answer to what is no HTTP.

        Parameters
        ----------
        msg : str
            What uvicorn says of it.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            self._send_sentence(400, "this is no HTTP request that can be understood")
        self.transport.close()

    def _send_sentence(self, status: int, sentence: str) -> None:
        body = msgspec.json.encode({"error": sentence, "field": None})
        named = HEADERS | {
            "content-type": "application/json",
            "content-length": str(len(body)),
            "connection": "close",
        }
        headers = [(name.encode(), value.encode()) for name, value in named.items()]
        events = (
            h11.Response(status_code=status, headers=headers),
            h11.Data(data=body),
            h11.EndOfMessage(),
        )
        self.transport.write(b"".join(self.conn.send(event) or b"" for event in events))


def bound_socket(port: int) -> socket.socket:
    """Socket on 127.0.0.1 that others can connect to.

    Parameters
    ----------
    port : int
        0: any that is free.

    Raises
    ------
    OSError
        The port is taken; says so.
    """
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((HOST, port))
    except (OSError, OverflowError):
        listening.close()
        raise OSError(
            f"--port {port}: another program has it; choose another, or 0 for any that is free"
        ) from None
    return listening


def bound_socket_near(port: int) -> socket.socket:
    """Socket on 127.0.0.1: on a port where it is free, else on any that is.

    Parameters
    ----------
    port : int
        The one that is wanted.
    """
    try:
        return bound_socket(port)
    except OSError:
        return bound_socket(0)


def serve(listening: socket.socket, tell: Callable[[str], None], open_page: bool = False) -> None:
    """Serve until a signal ends it.

    Parameters
    ----------
    listening : socket
        As `bound_socket` returns it.
    tell : callable
        Called with the address once the page can be opened.
    open_page : bool
        Open it in the browser.
    """
    port = listening.getsockname()[1]
    address = f"http://{HOST}:{port}/"
    config = uvicorn.Config(
        create_app(port),
        http=PatientProtocol,
        ws="none",
        lifespan="on",
        log_level="critical",
        access_log=False,
        server_header=False,
        limit_concurrency=CONNECTIONS_MAX,
        timeout_keep_alive=5,
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    startup = server.startup

    async def startup_and_tell(sockets: list[socket.socket] | None = None) -> None:
        await startup(sockets)
        tell(address)
        if open_page:
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()

    server.startup = startup_and_tell  # type: ignore[method-assign]
    with listening:
        server.run(sockets=[listening])
