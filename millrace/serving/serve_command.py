"""Serve command: `millrace serve`, a page on this machine that plans and asks what if."""

from typing import Annotated

import typer

from millrace.output import say
from millrace.planner.errors import InfeasibleError

PORT = 8321


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65_535, help=f"Port; 0: any that is free. Left out: {PORT}, or a free one."
        ),
    ] = None,
    open_page: Annotated[
        bool, typer.Option("--open", help="Open the page in the browser.")
    ] = False,
) -> None:
    """Open a page on this machine: plan, look at the schedule and memory, ask what if."""
    try:
        from millrace.serving import server
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("fastapi", "uvicorn", "pydantic", "h11"):
            raise
        raise InfeasibleError(
            f"the page needs FastAPI and uvicorn, and `{error.name}` is missing: pip install "
            f"'millrace[serve]'"
        ) from None
    listening = server.bound_socket_near(PORT) if port is None else server.bound_socket(port)
    server.serve(
        listening,
        lambda address: say(f"Millrace on {address} (Ctrl-C ends it)"),
        open_page=open_page,
    )
