// Chat requests and templates as llama-server reads them: what counting and generation have in common.
#pragma once

#include <string>

#include "chat.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "json.h"

// Throws what is wrong with a chat template. What llama.cpp throws of one that it cannot read has lost its words further on.
inline void check_template(const std::string & source) {
    jinja::lexer lexer;
    auto         tokens = lexer.tokenize(source);
    jinja::parse_from_tokens(tokens);
}

// The inputs of a template that a request names itself. `thinks`: whether the model thinks unless the request says otherwise.
inline common_chat_templates_inputs inputs_of_request(const common_json & asked, bool thinks) {
    common_chat_templates_inputs inputs;
    inputs.messages              = common_chat_msgs_parse_oaicompat(asked.at("messages"));
    inputs.tools                 = common_chat_tools_parse_oaicompat(asked.value("tools", common_json()));
    inputs.json_schema           = asked.contains("json_schema") ? asked.at("json_schema").dump() : std::string();
    inputs.add_generation_prompt = asked.value("add_generation_prompt", true);
    inputs.enable_thinking       = thinks;
    const auto kwargs            = asked.value("chat_template_kwargs", common_json::object());
    for (const auto & [key, value] : kwargs.items()) {
        inputs.chat_template_kwargs[key] = value.dump();
        if (key == "enable_thinking" && value.is_boolean()) {
            inputs.enable_thinking = value.get<bool>();
        }
    }
    if (asked.contains("continue_final_message")) {
        inputs.continue_final_message = common_chat_continuation_parse(asked.at("continue_final_message"));
    }
    return inputs;
}
