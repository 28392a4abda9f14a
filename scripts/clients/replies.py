"""The scripted model's replies in the four dialects, whole and streamed."""

import json


def pieces(text, size=17):
    text = text or ""
    return [text[i:i + size] for i in range(0, len(text), size)]


def chat(out, body, answer, prompt, written, number):
    """OpenAI's chat completions."""
    base = {"id": f"chatcmpl-{number:04}", "created": 1700000000, "model": body.get("model")}
    calls = [{"id": i, "type": "function", "function": {"name": n, "arguments": a}} for i, n, a, _ in answer.calls]
    finish = "tool_calls" if calls else "stop"
    usage = {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}
    if not body.get("stream"):
        message = {"role": "assistant", "content": answer.text or (None if calls else "")}
        if answer.reasoning:
            message["reasoning_content"] = answer.reasoning
        if calls:
            message["tool_calls"] = calls
        choice = {"index": 0, "message": message, "finish_reason": finish}
        return out.json({**base, "object": "chat.completion", "choices": [choice], "usage": usage})
    out.begin("text/event-stream")

    def event(delta, finish=None, **more):
        choices = [] if delta is None else [{"index": 0, "delta": delta, "finish_reason": finish}]
        out.chunk("data: " + json.dumps({**base, "object": "chat.completion.chunk", "choices": choices, **more}) + "\n\n")
    event({"role": "assistant", "content": None})
    for piece in pieces(answer.reasoning):
        event({"reasoning_content": piece})
    for piece in pieces(answer.text):
        event({"content": piece})
    for at, call in enumerate(calls):
        event({"tool_calls": [{**call, "index": at, "function": {**call["function"], "arguments": ""}}]})
        for piece in pieces(call["function"]["arguments"]):
            event({"tool_calls": [{"index": at, "function": {"arguments": piece}}]})
    event({}, finish)
    if (body.get("stream_options") or {}).get("include_usage"):
        event(None, usage=usage)
    out.chunk("data: [DONE]\n\n")
    out.end()


def responses(out, body, answer, prompt, written, number):
    """OpenAI's Responses."""
    items = []
    if answer.reasoning:
        said = [{"type": "reasoning_text", "text": answer.reasoning}]
        items.append({"id": f"rs_{number}", "type": "reasoning", "summary": [], "content": said, "encrypted_content": ""})
    if answer.text:
        part = {"type": "output_text", "text": answer.text, "annotations": []}
        items.append({"id": f"msg_{number}", "type": "message", "status": "completed", "role": "assistant", "content": [part]})
    for call, name, arguments, namespace in answer.calls:
        item = {"id": "fc_" + call, "type": "function_call", "status": "completed", "call_id": call, "name": name, "arguments": arguments}
        items.append({**item, **({"namespace": namespace} if namespace else {})})
    usage = {"input_tokens": prompt, "output_tokens": written, "total_tokens": prompt + written,
             "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}
    whole = {"id": f"resp_{number:04}", "object": "response", "created_at": 1700000000, "status": "completed", "model": body.get("model"),
             "output": items, "usage": usage, "error": None, "incomplete_details": None, "parallel_tool_calls": True,
             "tool_choice": "auto", "tools": [], "store": False}
    if not body.get("stream"):
        return out.json(whole)
    out.begin("text/event-stream")
    count = iter(range(10**6))

    def event(kind, **more):
        out.chunk(f"event: {kind}\ndata: {json.dumps({'type': kind, 'sequence_number': next(count), **more})}\n\n")
    event("response.created", response={**whole, "status": "in_progress", "output": [], "usage": None})
    for at, item in enumerate(items):
        where = {"output_index": at, "item_id": item["id"], "content_index": 0}
        empty = {**item, "status": "in_progress"} if item["type"] != "reasoning" else item
        event("response.output_item.added", output_index=at, item={**empty, "content": []} if "content" in item else empty)
        if item["type"] == "message":
            event("response.content_part.added", **where, part={"type": "output_text", "text": "", "annotations": []})
            for piece in pieces(answer.text):
                event("response.output_text.delta", **where, delta=piece)
            event("response.output_text.done", **where, text=answer.text)
            event("response.content_part.done", **where, part=item["content"][0])
        elif item["type"] == "function_call":
            for piece in pieces(item["arguments"]):
                event("response.function_call_arguments.delta", output_index=at, item_id=item["id"], delta=piece)
            event("response.function_call_arguments.done", output_index=at, item_id=item["id"], arguments=item["arguments"])
        event("response.output_item.done", output_index=at, item=item)
    event("response.completed", response=whole)
    out.end()


def anthropic(out, body, answer, prompt, written, number):
    """Anthropic's Messages."""
    blocks = []
    if answer.reasoning and (body.get("thinking") or {}).get("type") in ("enabled", "adaptive"):
        blocks.append({"type": "thinking", "thinking": answer.reasoning, "signature": "c2ln"})
    if answer.text:
        blocks.append({"type": "text", "text": answer.text})
    blocks += [{"type": "tool_use", "id": "toolu_" + i, "name": n, "input": json.loads(a)} for i, n, a, _ in answer.calls]
    stop = "tool_use" if answer.calls else "end_turn"
    usage = {"input_tokens": prompt, "output_tokens": written, "cache_creation_input_tokens": 0, "cache_read_input_tokens": 0}
    base = {"id": f"msg_{number:04}", "type": "message", "role": "assistant", "model": body.get("model"), "stop_sequence": None}
    if not body.get("stream"):
        return out.json({**base, "content": blocks, "stop_reason": stop, "usage": usage})
    out.begin("text/event-stream")

    def event(kind, **more):
        out.chunk(f"event: {kind}\ndata: {json.dumps({'type': kind, **more})}\n\n")
    event("message_start", message={**base, "content": [], "stop_reason": None, "usage": {**usage, "output_tokens": 1}})
    for at, block in enumerate(blocks):
        kind = block["type"]
        empty = {"text": {"text": ""}, "thinking": {"thinking": "", "signature": ""}, "tool_use": {"input": {}}}[kind]
        event("content_block_start", index=at, content_block={**block, **empty})
        if kind == "text":
            deltas = [{"type": "text_delta", "text": piece} for piece in pieces(block["text"])]
        elif kind == "thinking":
            deltas = [{"type": "thinking_delta", "thinking": block["thinking"]}, {"type": "signature_delta", "signature": "c2ln"}]
        else:
            deltas = [{"type": "input_json_delta", "partial_json": piece} for piece in pieces(json.dumps(block["input"]))]
        for delta in deltas:
            event("content_block_delta", index=at, delta=delta)
        event("content_block_stop", index=at)
    event("message_delta", delta={"stop_reason": stop, "stop_sequence": None}, usage={"output_tokens": written, "input_tokens": prompt})
    event("message_stop")
    out.end()


def ollama(out, body, answer, prompt, written, number):
    """Ollama's /api/chat."""
    base = {"model": body.get("model"), "created_at": "2026-11-21T00:00:00.000000Z"}
    calls = [{"id": i, "function": {"index": x, "name": n, "arguments": json.loads(a)}} for x, (i, n, a, _) in enumerate(answer.calls)]
    done = {"done": True, "done_reason": "stop", "total_duration": 10, "load_duration": 1, "prompt_eval_count": prompt,
            "prompt_eval_duration": 1, "eval_count": written, "eval_duration": 1}
    message = {"role": "assistant", "content": answer.text}
    if calls:
        message["tool_calls"] = calls
    if body.get("stream") is False:
        return out.json({**base, "message": message, **done})
    out.begin("application/x-ndjson")
    for piece in pieces(answer.text):
        out.chunk(json.dumps({**base, "message": {"role": "assistant", "content": piece}, "done": False}) + "\n")
    if calls:
        out.chunk(json.dumps({**base, "message": {**message, "content": ""}, "done": False}) + "\n")
    out.chunk(json.dumps({**base, "message": {"role": "assistant", "content": ""}, **done}) + "\n")
    out.end()
