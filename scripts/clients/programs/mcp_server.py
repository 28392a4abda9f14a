"""An MCP server by standard input and output with one tool, `read`. Several of them have tools of one name."""

import json
import sys

NAME = sys.argv[1]
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def answer(method, asked):
    if method == "initialize":
        return {"protocolVersion": asked.get("protocolVersion", "2025-06-18"), "capabilities": {"tools": {}}, "serverInfo": {"name": NAME, "version": "1"}}
    if method == "tools/list":
        return {"tools": [{"name": "read", "description": f"Reads from {NAME}.", "inputSchema": SCHEMA}]}
    if method == "tools/call":
        return {"content": [{"type": "text", "text": f"{NAME} read it"}]}
    return {}


for line in sys.stdin:
    said = json.loads(line)
    if "id" in said:
        print(json.dumps({"jsonrpc": "2.0", "id": said["id"], "result": answer(said.get("method"), said.get("params") or {})}), flush=True)
