//! Families of templates that llama.cpp knows by texts in them and treats in ways of their own (`common/chat.cpp`, in its
//! order). All others are [`Family::Other`].

/// What llama.cpp takes a template for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Family {
    /// Ministral 3, Magistral, Mistral Large 3.
    Ministral,
    /// gpt-oss and LLM-jp 4.1.
    Harmony,
    MuseGlimmer,
    /// Functionary 3.2.
    Functionary,
    KimiK2,
    KimiK3,
    /// Ling 3.0, Bailing V3.
    Ling,
    /// Cohere 2 MoE, North Code.
    Cohere2,
    /// LFM 2 and 2.5.
    Lfm2,
    /// GigaChat 3.
    GigaChat,
    MiniMaxM3,
    /// DeepSeek V3.2.
    DeepSeek3,
    DeepSeek4,
    /// Gemma 4's official template.
    Gemma4,
    /// One of the first templates of Gemma 4.
    Gemma4Outdated,
    /// MiniCPM 5.
    MiniCpm5,
    /// Qwen 3 Coder.
    Qwen3Coder,
    /// Qwen 3.5, Nemotron Nano 3 and StepFun 3.5.
    Qwen3Thinking,
    Other,
}

impl Family {
    /// The family of a template with this source.
    pub(super) fn of(source: &str) -> Family {
        let has = |text: &str| source.contains(text);
        if has("[SYSTEM_PROMPT]") && has("[TOOL_CALLS]") && has("[ARGS]") && !has("[CALL_ID]") {
            Family::Ministral
        } else if has("chat_format=llm-jp-harmony-v1") || has("<|channel|>") {
            Family::Harmony
        } else if has("<atem:function_calls>") && has("<|eom|>") {
            Family::MuseGlimmer
        } else if has(">>>all") && has(">>>${recipient}") {
            Family::Functionary
        } else if has("<|tool_calls_section_begin|>") && has("<|tool_call_begin|>") {
            Family::KimiK2
        } else if has("<|open|>") && has("<|close|>") && has("<|end_of_msg|>") {
            Family::KimiK3
        } else if has("<role>ASSISTANT</role>") && has("<arg_key>") {
            Family::Ling
        } else if has("<|START_TEXT|>") && has("<|START_ACTION|>") {
            Family::Cohere2
        } else if has("<|tool_list_start|>") && has("<|tool_list_end|>")
            || has("List of tools: [") && !has("<|tool_list_start|>")
        {
            Family::Lfm2
        } else if has("<|role_sep|>") && has("<|message_sep|>") && !has("<|function_call|>") {
            Family::GigaChat
        } else if has("]<]minimax[>[") && has("<tool_call>") && has("<invoke name=") {
            Family::MiniMaxM3
        } else if has("dsml_token") && has("DSML") && has("function_calls") {
            Family::DeepSeek3
        } else if has("dsml_token") && has("DSML") && has("tool_calls") {
            Family::DeepSeek4
        } else if has("'<|tool_call>call:'") {
            if has("{#- OpenAI Chat Completions:") { Family::Gemma4 } else { Family::Gemma4Outdated }
        } else if has("Tool usage guidelines:") && has("<function name=\"") && has("<param name=\"") {
            Family::MiniCpm5
        } else if has("<tool_call>")
            && has("<function=")
            && has("<parameter=")
            && !has("'<tool_call><function=' ~ tool_call.name ~ '>'")
        {
            if has("<think>") { Family::Qwen3Thinking } else { Family::Qwen3Coder }
        } else {
            Family::Other
        }
    }

    /// Whether it is one of Gemma 4's.
    pub(super) fn is_gemma_4(self) -> bool {
        matches!(self, Family::Gemma4 | Family::Gemma4Outdated)
    }
}
