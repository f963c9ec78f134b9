"""A client that takes tasks: the SDK's own, with the extension that it does not have itself."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, ClassVar, Literal

import mcp_types as types
import pytest
from mcp import Client, StdioServerParameters
from mcp.client.extension import ClaimContext, ClientExtension, ResultClaim
from mcp.client.streamable_http import streamable_http_client
from mcp.shared.exceptions import MCPError
from pydantic import ConfigDict, TypeAdapter

from oaken_mcp.http import PATH
from tests.forks import command
from tests.service import plain

EXTENSION = "io.modelcontextprotocol/tasks"
UNKNOWN = "There is no such task"


class Handle(types.Result):
    model_config = ConfigDict(extra="allow")
    result_type: Literal["task"] = "task"


class Takes(ClientExtension):
    identifier = EXTENSION

    def claims(self) -> Sequence[ResultClaim[Any]]:
        async def resolve(handle: Handle, context: ClaimContext) -> types.CallToolResult:
            raise AssertionError("it was not asked to")

        return [ResultClaim(result_type="task", model=Handle, resolve=resolve)]


class Asked(types.Request[dict[str, Any], str]):
    name_param: ClassVar[str] = "taskId"


class Holder:
    """A connected client."""

    def __init__(self, client: Client) -> None:
        self.client = client

    async def begin(self, **arguments: Any) -> dict[str, Any]:
        """The task that an enqueue gives."""
        arguments = {"kind": "work", "wait": 10, **arguments}
        made = await self.client.session.call_tool("enqueue", arguments, allow_claimed=True)
        assert isinstance(made, Handle), made
        return made.model_dump(by_alias=True, exclude={"meta"})

    async def ask(self, method: str, task_id: str, **params: Any) -> dict[str, Any]:
        request = Asked(method=method, params={"taskId": task_id, **params})
        answer = await self.client.session.send_request(request, TypeAdapter(dict[str, Any]))
        return {name: value for name, value in answer.items() if name != "_meta"}

    async def get(self, task_id: str) -> dict[str, Any]:
        answer = await self.ask("tasks/get", task_id)
        assert answer.pop("resultType") == "complete"
        return answer

    async def update(self, task_id: str, key: str, response: Any) -> None:
        assert await self.ask("tasks/update", task_id, inputResponses={key: response}) == {"resultType": "complete"}

    async def cancel(self, task_id: str) -> None:
        assert await self.ask("tasks/cancel", task_id) == {"resultType": "complete"}

    async def refused(self, method: str, task_id: str, **params: Any) -> tuple[int, str]:
        with pytest.raises(MCPError) as caught:
            await self.ask(method, task_id, **params)
        return caught.value.code, caught.value.message


async def _nobody(*_: Any) -> Any:
    raise AssertionError("forms of tasks are not put by the SDK")


@asynccontextmanager
async def holding(server: Any, *, takes: bool = True, forms: bool = True, era: str = "auto") -> AsyncIterator[Holder]:
    """A client of the server, which may be any that `Client` takes. It may take tasks, and put forms to people."""
    options: dict[str, Any] = {"elicitation_callback": _nobody} if forms else {}
    async with Client(server, mode=era, extensions=[Takes()] if takes else [], **options) as client:  # type: ignore[arg-type]
        yield Holder(client)


@asynccontextmanager
async def over_stdio(folder: Path, *options: str, **more: Any) -> AsyncIterator[Holder]:
    """Of a server process on a data folder."""
    program, *arguments = command("oaken_mcp.__main__", "--data-dir", str(folder), *options)
    async with holding(StdioServerParameters(command=program, args=arguments, env={**os.environ}), **more) as holder:
        yield holder


@asynccontextmanager
async def over_http(url: str, token: str, **more: Any) -> AsyncIterator[Holder]:
    """Of the server at an address."""
    headers = {"Authorization": f"Bearer {token}"}
    async with (
        plain(headers=headers) as http,
        holding(streamable_http_client(url + PATH, http_client=http), **more) as holder,
    ):
        yield holder
