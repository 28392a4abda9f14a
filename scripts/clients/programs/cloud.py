"""A conversation as three clouds keep it: a picture, a PDF, tools of two MCP servers with one name, and what a cloud's own servers did.
A client that is pointed at a local server in the middle of it sends all of it."""

PIXEL = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAIAAACQd1PeAAAADElEQVR4nGP4z8AAAAMBAQDJ/pLvAAAAAElFTkSuQmCC"
PDF = "JVBERi0xLjEKMSAwIG9iajw8L1R5cGUvQ2F0YWxvZy9QYWdlcyAyIDAgUj4+ZW5kb2JqCjIgMCBvYmo8PC9UeXBlL1BhZ2VzL0NvdW50IDAvS2lkc1tdPj5lbmRvYmoKdHJhaWxlcjw8L1Jvb3QgMSAwIFI+Pgo="
ASK = "What do these show?"
SAW = "A red dot and an empty report."
ARGUMENTS = '{"path":"a.txt"}'
PNG, PDF_URL = f"data:image/png;base64,{PIXEL}", f"data:application/pdf;base64,{PDF}"
SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
MCP = ("mcp__alpha__read", "mcp__beta__read")


def use(at, name):
    return {"type": "tool_use", "id": f"toolu_{at}", "name": name, "input": {"path": "a.txt"}}


def of_user():
    return [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}},
            {"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": PDF}, "title": "report.pdf"},
            {"type": "text", "text": ASK}]


def of_assistant():
    return [{"type": "thinking", "thinking": "I look.", "signature": "c2ln"},
            {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search", "input": {"query": "red dot"}},
            {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": [
                {"type": "web_search_result", "title": "Dots", "url": "https://example.invalid", "encrypted_content": "eA=="}]},
            {"type": "text", "text": SAW}]


def of_cloud_mcp():
    return [{"type": "mcp_tool_use", "id": "mcptoolu_1", "name": "read", "server_name": "alpha", "input": {"path": "a.txt"}},
            {"type": "mcp_tool_result", "tool_use_id": "mcptoolu_1", "is_error": False, "content": [{"type": "text", "text": "alpha read it"}]}]


def results():
    return [{"type": "tool_result", "tool_use_id": "toolu_0", "content": [
        {"type": "text", "text": "alpha read it"}, {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": PIXEL}}]},
        {"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True, "content": "no such file"}]


def anthropic():
    return [{"role": "user", "content": of_user()}, {"role": "assistant", "content": [*of_assistant(), *of_cloud_mcp()]},
            {"role": "user", "content": "Read both."}, {"role": "assistant", "content": [use(at, name) for at, name in enumerate(MCP)]},
            {"role": "user", "content": results()}, {"role": "assistant", "content": [{"type": "text", "text": "One is there."}]}]


def openai():
    calls = [{"id": f"call_{at}", "type": "function", "function": {"name": name, "arguments": ARGUMENTS}} for at, name in enumerate(MCP)]
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": PNG, "detail": "auto"}},
                                         {"type": "file", "file": {"filename": "report.pdf", "file_data": PDF_URL}}, {"type": "text", "text": ASK}]},
            {"role": "assistant", "content": SAW, "refusal": None, "annotations": [{"type": "url_citation", "url_citation": {
                "url": "https://example.invalid", "title": "Dots", "start_index": 0, "end_index": 1}}]},
            {"role": "user", "content": "Read both."}, {"role": "assistant", "content": None, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "call_0", "content": "alpha read it"}, {"role": "tool", "tool_call_id": "call_1", "content": "Error: no such file"},
            {"role": "assistant", "content": "One is there."}]


def responses():
    call = [{"type": "function_call", "id": f"fc_{at}", "call_id": f"call_{at}", "name": name, "arguments": ARGUMENTS, "status": "completed"}
            for at, name in enumerate(MCP)]
    out = [{"type": "function_call_output", "call_id": "call_0", "output": [
        {"type": "input_text", "text": "alpha read it"}, {"type": "input_image", "image_url": PNG, "detail": "auto"}]},
        {"type": "function_call_output", "call_id": "call_1", "output": "Error: no such file"}]
    return [{"type": "message", "role": "user", "content": [
        {"type": "input_image", "image_url": PNG, "detail": "auto"}, {"type": "input_file", "filename": "report.pdf", "file_data": PDF_URL},
        {"type": "input_text", "text": ASK}]},
        {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "I look."}], "encrypted_content": "gAAAAA=="},
        {"type": "web_search_call", "id": "ws_1", "status": "completed", "action": {"type": "search", "query": "red dot"}},
        {"type": "mcp_list_tools", "id": "mcpl_1", "server_label": "alpha", "tools": [{"name": "read", "input_schema": SCHEMA}]},
        {"type": "mcp_call", "id": "mcp_1", "server_label": "alpha", "name": "read", "arguments": ARGUMENTS, "output": "alpha read it"},
        {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": SAW, "annotations": []}]},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "Read both."}]}, *call, *out,
        {"type": "message", "id": "msg_2", "role": "assistant", "status": "completed", "content": [{"type": "output_text", "text": "One is there.", "annotations": []}]}]


def ollama():
    calls = [{"function": {"name": name, "arguments": {"path": "a.txt"}}} for name in MCP]
    return [{"role": "user", "content": ASK, "images": [PIXEL]}, {"role": "assistant", "content": SAW, "thinking": "I look."},
            {"role": "user", "content": "Read both."}, {"role": "assistant", "content": "", "tool_calls": calls},
            {"role": "tool", "tool_name": MCP[0], "content": "alpha read it"}, {"role": "tool", "tool_name": MCP[1], "content": "Error: no such file"},
            {"role": "assistant", "content": "One is there."}]
