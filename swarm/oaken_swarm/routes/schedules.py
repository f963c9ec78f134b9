"""Schedules: jobs that come by the clock."""

from __future__ import annotations

from oaken_jobs import views
from oaken_jobs.requests import Request, ScheduleName, ScheduleRequest, Workspace, read
from oaken_swarm.call import Answer, Call, answer
from oaken_swarm.paths import Route
from oaken_swarm.routes.jobs import shown


class _Name(Request):
    name: ScheduleName


class InWorkspace(Request):
    """Of which workspace, where the token is bound to none."""

    workspace: Workspace | None = None


def _name(call: Call) -> str:
    return read(_Name, {"name": call.params["name"]}).name


async def schedules(call: Call, asked: InWorkspace) -> Answer:
    rows = await call.core.schedules.list(call.who, asked.workspace)
    return answer({"schedules": [views.schedule(row) for row in rows]})


async def get(call: Call, asked: InWorkspace) -> Answer:
    return answer({"schedule": views.schedule(await call.core.schedules.get(call.who, _name(call), asked.workspace))})


async def put(call: Call, asked: ScheduleRequest) -> Answer:
    schedule, changed = await call.core.schedules.put(call.who, _name(call), asked)
    return answer({"schedule": views.schedule(schedule), "changed": changed})


async def remove(call: Call, asked: InWorkspace) -> Answer:
    await call.core.schedules.remove(call.who, _name(call), asked.workspace)
    return Answer(b"", 204)


async def run(call: Call, asked: InWorkspace) -> Answer:
    job = await call.core.schedules.run(call.who, _name(call), asked.workspace)
    return answer({"job": shown(call, job)}, 201)


ROUTES = (
    Route("GET", "/v1/schedules", schedules, InWorkspace, says="List schedules", gives="Schedules"),
    Route("GET", "/v1/schedules/{name}", get, InWorkspace, says="Read a schedule", gives="OneSchedule"),
    Route(
        "PUT",
        "/v1/schedules/{name}",
        put,
        ScheduleRequest,
        size="payload",
        needs="manage",
        repeats="itself",
        says="Add or change a schedule",
        gives="PutSchedule",
    ),
    Route(
        "DELETE", "/v1/schedules/{name}", remove, InWorkspace, needs="manage", says="Remove a schedule", statuses=(204,)
    ),
    Route(
        "POST",
        "/v1/schedules/{name}/run",
        run,
        InWorkspace,
        needs="manage",
        says="Enqueue a schedule's job now",
        gives="OneJob",
        statuses=(201,),
    ),
)
