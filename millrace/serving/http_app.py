"""HTTP app: the API and the page, and the answer of each address.

Every answer but the page's own files is a JSON document; a refusal is `{error, field}`.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Annotated, Any

import msgspec
from fastapi import FastAPI, Path, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from starlette.exceptions import HTTPException

import millrace
from millrace.serving.documents.catalogue_document import catalogue_document
from millrace.serving.guards import Guards
from millrace.serving.planning_jobs import PlanningJobs, PlanShelf
from millrace.serving.questions import PLAN_NAME, PlanQuestion, SimulationQuestion
from millrace.serving.refusals import RefusedError
from millrace.serving.simulation_desk import SimulationDesk

KINDS = {
    ".html": "text/html",
    ".css": "text/css",
    ".js": "text/javascript",
    ".svg": "image/svg+xml",
}
PlanName = Annotated[str, Path(pattern=PLAN_NAME)]
REPORT_POLICY = (
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)


class JsonAnswer(JSONResponse):
    """Answer as JSON, encoded by msgspec."""

    def render(self, content: Any) -> bytes:
        """Bytes of a document."""
        return msgspec.json.encode(content)


def page_files() -> dict[str, tuple[bytes, str]]:
    """Content and type of every file of the page, by name: nothing else is ever read from disk."""
    folder = files("millrace.serving").joinpath("browser")
    return {
        entry.name: (entry.read_bytes(), KINDS["." + entry.name.rpartition(".")[2]])
        for entry in folder.iterdir()
        if "." + entry.name.rpartition(".")[2] in KINDS
    }


def create_app(port: int) -> Guards:
    """ASGI application of the server.

    Parameters
    ----------
    port : int
        On which it is reached.
    """
    shelf = PlanShelf()
    jobs, desk = PlanningJobs(shelf), SimulationDesk(shelf)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        jobs.start()
        desk.start()
        yield
        jobs.end()
        desk.end()

    app = FastAPI(
        title="Millrace",
        version=millrace.__version__,
        description="Plans of distributed training, and what they would become.",
        docs_url=None,  # these pages load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        default_response_class=JsonAnswer,
    )
    _add_refusals(app)
    _add_page(app)
    _add_plans(app, shelf, jobs)
    _add_simulations(app, desk)
    return Guards(app, port)


def _add_refusals(app: FastAPI) -> None:
    @app.exception_handler(RefusedError)
    def refused(request: Request, error: RefusedError) -> Response:
        return JsonAnswer(error.document, error.status)

    @app.exception_handler(RequestValidationError)
    def misunderstood(request: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = [str(part) for part in first["loc"] if part not in ("body", "path")]
        sentence = f"{'.'.join(place) or 'the body'}: {first['msg'][:200].lower()}"
        return JsonAnswer({"error": sentence, "field": ".".join(place) or None}, 422)

    @app.exception_handler(HTTPException)
    def nothing_there(request: Request, error: HTTPException) -> Response:
        sentence = {
            404: f"there is nothing at {request.url.path:.80}: /openapi.json lists what there is",
            405: f"{request.url.path:.80} is not asked by {request.method}: see /openapi.json",
        }.get(error.status_code, str(error.detail))
        return JsonAnswer({"error": sentence, "field": None}, error.status_code)


def _add_page(app: FastAPI) -> None:
    contents = page_files()

    @app.get("/", include_in_schema=False)
    def page() -> Response:
        content, kind = contents["index.html"]
        return Response(content, media_type=kind)

    @app.get("/page/{name}", include_in_schema=False)
    def page_file(name: str) -> Response:
        if name not in contents:
            raise HTTPException(404)
        content, kind = contents[name]
        return Response(content, media_type=kind)

    @app.get("/api/catalogue")
    def catalogue() -> Any:
        """Models, devices, networks, frameworks and words that questions are made of."""
        return JsonAnswer(catalogue_document())


def _add_plans(app: FastAPI, shelf: PlanShelf, jobs: PlanningJobs) -> None:
    @app.post("/api/plan", status_code=202)
    def plan(question: PlanQuestion) -> Any:
        """Begin to search for a plan: a job, which is done at once where it was asked before."""
        return JsonAnswer(jobs.submit(question).document, 202)

    @app.get("/api/jobs/{job}")
    def job_state(job: str) -> Any:
        """State of a job: queued, running, done (with the plan's name), failed or cancelled."""
        return JsonAnswer(jobs.job(job).document)

    @app.delete("/api/jobs/{job}")
    def cancel_job(job: str) -> Any:
        """Cancel a job."""
        return JsonAnswer(jobs.cancel(job).document)

    @app.get("/api/plans/{plan}")
    def plan_shown(plan: PlanName) -> Any:
        """Decisions of a plan and what is predicted of it."""
        return JsonAnswer(shelf.document(plan))

    @app.get("/api/plans/{plan}/document")
    def plan_file(plan: PlanName) -> Any:
        """The plan itself, for `millrace show`, `simulate` and `run`."""
        name = f'attachment; filename="plan-{plan}.json"'
        text = msgspec.json.format(shelf.text(plan), indent=2)
        return Response(text, media_type="application/json", headers={"content-disposition": name})


def _add_simulations(app: FastAPI, desk: SimulationDesk) -> None:
    @app.post("/api/simulate")
    def simulate(question: SimulationQuestion) -> Any:
        """Figures of a plan under changes, and of the plan as it is."""
        return JsonAnswer(desk.ask("simulate", question))

    @app.post("/api/step")
    def step(question: SimulationQuestion) -> Any:
        """One step: spans of a Gantt chart, memory over time, and where the time goes."""
        return JsonAnswer(desk.ask("step", question))

    @app.get("/api/plans/{plan}/report")
    def report(plan: PlanName) -> Any:
        """Page about the step, as `millrace simulate --html` writes it."""
        shown = desk.ask("report", SimulationQuestion.model_validate({"plan": plan}))
        headers = {"content-security-policy": REPORT_POLICY}
        return Response(shown, media_type="text/html", headers=headers)
