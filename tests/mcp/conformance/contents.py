"""What the suites read by fixed names: contents of each sort, resources and prompts."""

from __future__ import annotations

import asyncio
import json
import warnings

import mcp_types as types
from mcp.shared.exceptions import MCPDeprecationWarning

from tests.mcp.conformance.tools import Asked, text, tool

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
WAV = "UklGRiYAAABXQVZFZm10IBAAAAABAAEAQB8AAIA+AAACABAAZGF0YQIAAAAAAA=="
IMAGE = types.ImageContent(type="image", data=PNG, mime_type="image/png")


def _embedded(uri: str, media_type: str, said: str) -> types.EmbeddedResource:
    return types.EmbeddedResource(
        type="resource", resource=types.TextResourceContents(uri=uri, mime_type=media_type, text=said)
    )


@tool()
async def test_simple_text(asked: Asked) -> types.CallToolResult:
    """Gives a text."""
    return text("This is a simple text response for testing.")


@tool()
async def test_image_content(asked: Asked) -> types.CallToolResult:
    """Gives an image."""
    return types.CallToolResult(content=[IMAGE])


@tool()
async def test_audio_content(asked: Asked) -> types.CallToolResult:
    """Gives a sound."""
    return types.CallToolResult(content=[types.AudioContent(type="audio", data=WAV, mime_type="audio/wav")])


@tool()
async def test_embedded_resource(asked: Asked) -> types.CallToolResult:
    """Gives a resource."""
    resource = _embedded("test://embedded-resource", "text/plain", "This is an embedded resource content.")
    return types.CallToolResult(content=[resource])


@tool()
async def test_multiple_content_types(asked: Asked) -> types.CallToolResult:
    """Gives a text, an image and a resource."""
    resource = _embedded("test://mixed-content-resource", "application/json", '{"test":"data","value":123}')
    said = types.TextContent(type="text", text="Multiple content types test:")
    return types.CallToolResult(content=[said, IMAGE, resource])


@tool()
async def test_error_handling(asked: Asked) -> types.CallToolResult:
    """Fails."""
    return text("This tool intentionally returns an error for testing", is_error=True)


@tool()
async def test_tool_with_progress(asked: Asked) -> types.CallToolResult:
    """Says how far it is."""
    for percent in (0, 50, 100):
        await asked.ctx.session.report_progress(percent, 100)
        await asyncio.sleep(0.05)  # the suite tells late ones from those that come together
    return text("Done.")


@tool()
async def test_tool_with_logging(asked: Asked) -> types.CallToolResult:
    """Logs three lines."""
    for line in ("Tool execution started", "Tool processing data", "Tool execution completed"):
        await _log(asked, line)
        await asyncio.sleep(0.05)
    return text("Done.")


@tool({"prompt": {"type": "string"}})
async def test_sampling(asked: Asked) -> types.CallToolResult:
    """Asks the caller's model, while the caller waits."""
    said = types.TextContent(type="text", text=(asked.params.arguments or {})["prompt"])
    message = types.SamplingMessage(role="user", content=said)
    request = types.CreateMessageRequest(params=types.CreateMessageRequestParams(messages=[message], max_tokens=100))
    sampled = await asked.ctx.session.send_request(request, types.CreateMessageResult)
    return text(f"LLM response: {sampled.content}")


@tool({"message": {"type": "string"}})
async def test_elicitation(asked: Asked) -> types.CallToolResult:
    """Asks whoever calls, while they wait."""
    schema = {"type": "object", "properties": {"response": {"type": "string"}}}
    elicited = await asked.ctx.session.elicit_form((asked.params.arguments or {})["message"], schema)
    return text(f"User response: {elicited.action}, {elicited.content}")


@tool()
async def test_logging_tool(asked: Asked) -> types.CallToolResult:
    """Logs a line, to those who want it."""
    await _log(asked, "A line")
    return text("Done.")


async def _log(asked: Asked, line: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", MCPDeprecationWarning)
        sending = asked.ctx.session.send_log_message("info", line, related_request_id=asked.ctx.request_id)
    await sending


@tool(
    {
        "name": {"type": "string"},
        "address": {"$ref": "#/$defs/address"},
        "contactMethod": {"type": "string", "enum": ["phone", "email"]},
        "phone": {"type": "string"},
        "email": {"type": "string"},
    },
    **{
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {
            "address": {
                "$anchor": "addressDef",
                "type": "object",
                "properties": {"street": {"type": "string"}, "city": {"type": "string"}},
            }
        },
        "allOf": [{"anyOf": [{"required": ["phone"]}, {"required": ["email"]}]}],
        "if": {"properties": {"contactMethod": {"const": "phone"}}, "required": ["contactMethod"]},
        "then": {"required": ["phone"]},
        "else": {"required": ["email"]},
        "additionalProperties": False,
    },
)
async def json_schema_2020_12_tool(asked: Asked) -> types.CallToolResult:
    """Has a schema with all that schemas may have."""
    return text("Done.")


@tool({"region": {"type": "string", "x-mcp-header": "Region"}})
async def test_header_argument(asked: Asked) -> types.CallToolResult:
    """Has an argument that is a header, too."""
    return text("Done.")


RESOURCES = [
    types.Resource(uri="test://static-text", name="text", description="A text.", mime_type="text/plain"),
    types.Resource(uri="test://static-binary", name="binary", description="An image.", mime_type="image/png"),
    types.Resource(uri="test://watched-resource", name="watched", description="A text.", mime_type="text/plain"),
]
TEMPLATE = types.ResourceTemplate(
    uri_template="test://template/{id}/data", name="data", description="Data by id.", mime_type="application/json"
)


def resource(uri: str) -> types.TextResourceContents | types.BlobResourceContents | None:
    """What is at an address, if anything is."""
    if uri == "test://static-text":
        said = "This is the content of the static text resource."
        return types.TextResourceContents(uri=uri, mime_type="text/plain", text=said)
    if uri == "test://static-binary":
        return types.BlobResourceContents(uri=uri, mime_type="image/png", blob=PNG)
    if uri.startswith("test://template/") and uri.endswith("/data"):
        named = uri.removeprefix("test://template/").removesuffix("/data")
        data = {"id": named, "templateTest": True, "data": f"Data for ID: {named}"}
        return types.TextResourceContents(uri=uri, mime_type="application/json", text=json.dumps(data))
    return None


PROMPTS = {
    "test_simple_prompt": (),
    "test_prompt_with_arguments": ("arg1", "arg2"),
    "test_prompt_with_embedded_resource": ("resourceUri",),
    "test_prompt_with_image": (),
    "test_input_required_result_prompt": (),
}
"""Their names, and their arguments."""


def prompts() -> list[types.Prompt]:
    return [
        types.Prompt(
            name=name,
            description=f"The prompt {name}.",
            arguments=[types.PromptArgument(name=each, description="A text.", required=True) for each in arguments],
        )
        for name, arguments in PROMPTS.items()
    ]


def messages(name: str, given: dict[str, str]) -> list[types.PromptMessage]:
    """What a prompt says that asks nothing."""
    contents: list[types.ContentBlock]
    if name == "test_prompt_with_arguments":
        contents = [_text(f"Prompt with arguments: arg1='{given['arg1']}', arg2='{given['arg2']}'")]
    elif name == "test_prompt_with_embedded_resource":
        embedded = _embedded(given["resourceUri"], "text/plain", "Embedded resource content for testing.")
        contents = [embedded, _text("Please process the embedded resource above.")]
    elif name == "test_prompt_with_image":
        contents = [IMAGE, _text("Please analyze the image above.")]
    else:
        contents = [_text("This is a simple prompt for testing.")]
    return [types.PromptMessage(role="user", content=content) for content in contents]


def _text(said: str) -> types.TextContent:
    return types.TextContent(type="text", text=said)
