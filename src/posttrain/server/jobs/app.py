"""The application of a server of jobs: /v1/jobs."""

import contextlib
from collections.abc import AsyncIterator, Collection

from fastapi import FastAPI
from starlette.concurrency import run_in_threadpool

from posttrain.server.answers import answer_errors
from posttrain.server.guard import Guard
from posttrain.server.jobs import routes
from posttrain.server.jobs.services import JobServices


def create_jobs_app(services: JobServices, *, hosts: Collection[str] = ()) -> FastAPI:
    """The application over a server's parts, which it starts and closes.

    Args:
        services: the parts.
        hosts: names of this machine, besides localhost and addresses.
    """

    @contextlib.asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        services.start()
        yield
        await run_in_threadpool(services.close)

    app = FastAPI(
        lifespan=lifespan,
        title="posttrain jobs",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        redirect_slashes=False,
    )
    app.state.services = services
    app.include_router(routes.router)
    answer_errors(app)
    app.add_exception_handler(404, routes.not_found)
    app.add_middleware(Guard, hosts=hosts, limits=services.limits, keys=services.keys)
    return app
