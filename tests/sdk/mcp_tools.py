"""Drives windowsill's tools with the Model Context Protocol's own Python SDK: `mcp_tools.py CONVERSATION URL`, or
`mcp_tools.py CONVERSATION COMMAND ARGUMENT…` over standard input and output. Prints what it saw as JSON, for each way of
agreeing on a version."""

import asyncio
import json
import sys

from mcp import Client, StdioServerParameters


async def drive(server, mode, conversation):
    heard = []

    async def progress(done, total, message):
        heard.append(done)

    async with Client(server, mode=mode) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}

        async def call(name, **arguments):
            # The SDK holds the answer against the tool's own schema.
            result = await client.call_tool(name, {"conversation": conversation, **arguments}, progress_callback=progress)
            return None if result.is_error else result.structured_content

        pinned = await call("pin", text=f"The gate stays green ({mode}).")
        listed = await call("pins")
        taken = await call("unpin", pin=pinned["pin"])
        segments = await call("build")
        built = await call("build", turns=[1])
        done = await call("done", note="It is built.")
        again = await call("done")
        return {
            "version": client.protocol_version,
            "writes": sorted(name for name, tool in tools.items() if not tool.annotations.read_only_hint),
            "destroys": sorted(name for name, tool in tools.items() if tool.annotations.destructive_hint),
            "structured": sorted(name for name, tool in tools.items() if tool.output_schema),
            "pins": [pin["text"] for pin in listed["pins"]],
            "taken": taken is not None,
            "turns": len(segments["turns"]),
            "built": built["messages"][0]["role"],
            "done": done is not None,
            "again": again,
            "progress": len(heard),
        }


async def main():
    conversation, *server = sys.argv[1:]
    server = server[0] if len(server) == 1 else StdioServerParameters(command=server[0], args=server[1:])
    # What is done is done for both: the second finds nothing new since.
    print(json.dumps([await drive(server, mode, conversation) for mode in ("legacy", "auto")]))


asyncio.run(main())
