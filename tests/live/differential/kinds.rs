//! The kinds of items and blocks that the newest SDKs have types for (`openai` 3.52, `types/responses/response_input_item_param.py`;
//! `anthropic` 2.12, `types/beta/beta_content_block_param.py`), beside those that [`super::ask`] makes turns of.

use serde_json::{Value, json};

use crate::fakes::Dice;

/// An item of a Responses request, alone: its other half may be missing.
pub(crate) fn item(dice: &mut Dice, words: &str, pixel: &str) -> Value {
    let image = format!("data:image/png;base64,{pixel}");
    let tool = json!({"type": "function", "name": "f", "parameters": {"type": "object"}});
    let all = [
        json!({"type": "file_search_call", "id": "i", "queries": ["q"], "status": "completed", "results": null}),
        json!({"type": "computer_call", "id": "i", "call_id": "c", "action": {"type": "click", "x": 1, "y": 2, "button": "left"}, "pending_safety_checks": [], "status": "completed"}),
        json!({"type": "computer_call_output", "call_id": "c", "output": {"type": "computer_screenshot", "image_url": image}}),
        json!({"type": "tool_search_call", "call_id": "s", "execution": "client", "arguments": {}, "status": "completed"}),
        json!({"type": "tool_search_output", "call_id": "s", "execution": "client", "status": "completed", "tools": [tool]}),
        json!({"type": "additional_tools", "role": "developer", "tools": [tool]}),
        json!({"type": "configuration_update", "reasoning": {"effort": "low"}}),
        json!({"type": "code_interpreter_call", "id": "i", "code": words, "container_id": "c", "outputs": [{"type": "logs", "logs": words}], "status": "completed"}),
        json!({"type": "shell_call", "call_id": "c", "action": {"commands": ["ls"]}, "status": "completed"}),
        json!({"type": "shell_call_output", "call_id": "c", "output": [{"stdout": words, "stderr": "", "outcome": {"type": "exit", "exit_code": 0}}]}),
        json!({"type": "apply_patch_call", "call_id": "c", "status": "completed", "operation": {"type": "update_file", "path": "p", "diff": words}}),
        json!({"type": "apply_patch_call_output", "call_id": "c", "status": "failed", "output": words}),
        json!({"type": "mcp_approval_request", "id": "i", "name": "n", "server_label": "s", "arguments": "{}"}),
        json!({"type": "mcp_approval_response", "approval_request_id": "i", "approve": true}),
        json!({"type": "mcp_call", "id": "i", "name": "n", "server_label": "s", "arguments": "{}", "output": words, "error": null}),
        json!({"type": "compaction_trigger"}),
        json!({"type": "program", "id": "i", "call_id": "p", "code": words, "fingerprint": "f"}),
        json!({"type": "program_output", "id": "i", "call_id": "p", "result": words, "status": "completed"}),
        json!({"type": "ghost_snapshot", "ghost_commit": {}}),
        json!({"type": "agent_message", "author": "a", "recipient": "b", "content": [{"type": "input_text", "text": words}]}),
        json!({"type": "function_call_output", "call_id": "c", "output": [{"type": "input_image", "image_url": image}, {"type": "input_file", "filename": "a.pdf", "file_data": "data:application/pdf;base64,JVBERi0="}]}),
        json!({"type": "message", "role": "user", "content": [{"type": "input_file", "file_id": "f"}, {"type": "input_audio", "input_audio": {"data": "AAAA", "format": "wav"}}, {"type": "input_text", "text": words}]}),
        json!({"type": "message", "role": "user", "content": [{"type": "input_image", "file_id": "f", "detail": "auto"}]}),
    ];
    super::ask::pick(dice, &all)
}

/// A content block of a Messages request, alone: its other half may be missing.
pub(crate) fn block(dice: &mut Dice, words: &str) -> Value {
    let text = json!({"type": "text", "text": words});
    let tool = json!({"name": "read_file", "input_schema": {"type": "object"}});
    let all = [
        json!({"type": "web_fetch_tool_result", "tool_use_id": "s", "content": {"type": "web_fetch_result", "url": "u", "content": {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": words}}}}),
        json!({"type": "web_search_tool_result", "tool_use_id": "s", "content": {"type": "web_search_tool_result_error", "error_code": "unavailable"}}),
        json!({"type": "advisor_tool_result", "tool_use_id": "s", "content": {"type": "advisor_result", "text": words}}),
        json!({"type": "code_execution_tool_result", "tool_use_id": "s", "content": {"type": "code_execution_result", "content": [], "return_code": 0, "stdout": words, "stderr": ""}}),
        json!({"type": "bash_code_execution_tool_result", "tool_use_id": "s", "content": {"type": "bash_code_execution_result", "content": [], "return_code": 1, "stdout": "", "stderr": words}}),
        json!({"type": "text_editor_code_execution_tool_result", "tool_use_id": "s", "content": {"type": "text_editor_code_execution_view_result", "content": words, "file_type": "text"}}),
        json!({"type": "tool_search_tool_result", "tool_use_id": "s", "content": {"type": "tool_search_tool_search_result", "tool_references": [{"type": "tool_reference", "tool_name": "f"}]}}),
        json!({"type": "mcp_tool_use", "id": "m", "name": "f", "server_name": "s", "input": {}}),
        json!({"type": "mcp_tool_result", "tool_use_id": "m", "is_error": true, "content": [text]}),
        json!({"type": "container_upload", "file_id": "f"}),
        json!({"type": "compaction", "content": words, "encrypted_content": "x"}),
        json!({"type": "fallback", "to": {"model": "m"}}),
        json!({"type": "mcp_tool_listing", "mcp_server_name": "s", "tools": []}),
        json!({"type": "tool_addition", "tool": {"type": "definition", "definition": tool}}),
        json!({"type": "tool_removal", "tool": {"name": "read_file"}}),
        json!({"type": "browser_state", "tabs": [{"id": 1, "url": "u", "title": words}]}),
        json!({"type": "document", "source": {"type": "base64", "media_type": "application/pdf", "data": "JVBERi0="}, "title": "a.pdf"}),
        json!({"type": "document", "source": {"type": "file", "file_id": "f"}}),
        json!({"type": "image", "source": {"type": "file", "file_id": "f"}}),
        json!({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "search_result", "source": "s", "title": "t", "content": [text]}]}),
        json!({"type": "tool_result", "tool_use_id": "t", "is_error": true, "content": []}),
        json!({"type": "server_tool_use", "id": "s", "name": "code_execution", "input": {"code": words}}),
        json!({"type": "x_unknown", "deep": [{"a": words}]}),
    ];
    super::ask::pick(dice, &all)
}
