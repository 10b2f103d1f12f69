"""Routes of jobs. A job is found by its id among those of the key's owner alone."""

import mmap
import os
import sqlite3
import tempfile
from collections.abc import Collection
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Query
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse

from posttrain.errors import first_line
from posttrain.serving.guard import Owner, application, services_of
from posttrain.serving.jobs import processes
from posttrain.serving.jobs.services import JobServices
from posttrain.serving.jobs.specification import write
from posttrain.serving.jobs.table import OPEN, RUN, Job

NO_SNIFFING = {"X-Content-Type-Options": "nosniff"}  # what a model wrote is never taken for a page

router = APIRouter(prefix="/v1/jobs")

Json = dict[str, Any]
Offset = Annotated[int, Query(ge=0, le=2**53)]


Served = Annotated[JobServices, Depends(services_of)]


def _job(job_id: str, owner: Owner, served: Served) -> Job:
    return served.table.get(owner, job_id)


Mine = Annotated[Job, Depends(_job)]


def create_jobs_app(services: JobServices, *, hosts: Collection[str] = ()) -> FastAPI:
    """The application over a server's parts; `hosts` are names of this machine, besides localhost and addresses."""
    return application(services, (router,), hosts)


@router.post("", status_code=201)
async def submit(request: Request, owner: Owner, served: Served) -> Json:
    """Submit a job. Its body goes to a file, and its rows are read from there one by one, for one request at a time."""
    if request.headers.get("content-encoding", "identity") != "identity":
        raise HTTPException(415, "send the body as it is; compressed bodies are not read")
    try:
        with tempfile.TemporaryFile(dir=served.table.root) as file:
            async for part in request.stream():
                file.write(part)
            file.flush()
            async with served.turn:
                return await run_in_threadpool(_submit, file.fileno(), owner, served)
    except (OSError, sqlite3.OperationalError) as error:
        raise HTTPException(507, f"the server cannot keep the job: {first_line(error)}") from error


def _submit(file: int, owner: str, served: JobServices) -> Json:
    body = mmap.mmap(file, 0, access=mmap.ACCESS_READ) if os.fstat(file).st_size else b""
    job = served.table.create(owner, partial(write, body, owner, served.offered))
    served.report(f"job {job.id[:8]} of {owner}: {job.command} of {job.model} submitted")
    served.wake.set()
    return job.shown()


@router.get("")
def jobs(owner: Owner, served: Served, limit: Annotated[int, Query(ge=1, le=200)] = 50, before: str = "") -> Json:
    """The owner's jobs, the latest first; `before` is the last id of the page before."""
    number = served.table.get(owner, before).number if before else 2**62
    found = served.table.all("owner = ? AND number < ?", owner, number)[::-1]
    page = found[:limit]
    return {"jobs": [job.shown() for job in page], "next": page[-1].id if len(found) > limit else None}


@router.get("/{job_id}")
def job(job: Mine, served: Served) -> Json:
    """A job, with its step and how many there shall be."""
    folder = served.table.folder(job)
    steps = processes.read_object(folder, RUN, "environment.json").get("steps")
    known = steps if isinstance(steps, int) else job.steps or None
    return {**job.shown(), "step": processes.last_step(folder), "steps": known}


@router.get("/{job_id}/logs")
def logs(job: Mine, served: Served, offset: Offset = 0) -> Response:
    """What the command printed, from a byte on."""
    text, after = processes.log_part(served.table.folder(job), offset)
    return Response(text, media_type="text/plain", headers={"X-Next-Offset": str(after), **NO_SNIFFING})


@router.get("/{job_id}/metrics")
@router.get("/{job_id}/samples")
def rows(request: Request, job: Mine, served: Served, offset: Offset = 0) -> Response:
    """Metrics by step, or completions with their rewards, from a row on."""
    name = f"{request.url.path.rpartition('/')[2]}.jsonl"
    found, after = processes.rows_part(served.table.folder(job), name, offset)
    return JSONResponse({"rows": found, "next": after}, headers=NO_SNIFFING)


@router.post("/{job_id}/cancel")
def cancel(job: Mine, served: Served) -> Json:
    """End a job; one that runs saves a checkpoint, which is exported."""
    if job.state in OPEN:
        served.cancel(job)
        served.report(f"job {job.id[:8]} of {job.owner}: is to end")
    return served.table.get(job.owner, job.id).shown()


@router.get("/{job_id}/result")
def result(job: Mine, served: Served) -> Response:
    """The trained model as a tar archive: a folder that transformers loads."""
    folder = served.table.folder(job)
    if job.state in OPEN:
        raise HTTPException(409, f"job {job.id} has not ended")
    if not processes.exported(folder):
        raise HTTPException(409, f"job {job.id} is {job.state}, and there is no checkpoint of it")
    headers = {"Content-Disposition": f'attachment; filename="{job.id}.tar"', **NO_SNIFFING}
    return StreamingResponse(processes.tar_of(folder, job.id), media_type="application/x-tar", headers=headers)


@router.delete("/{job_id}", status_code=204)
def delete(job: Mine, served: Served) -> None:
    """Remove a job that has ended, with all its files."""
    if job.state in OPEN:
        raise HTTPException(409, f"job {job.id} has not ended; cancel it first")
    served.table.delete(job)
