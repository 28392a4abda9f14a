// llama.cpp as the counter needs it, for Rust: a model's vocabulary without its weights, and a chat template as llama-server
// applies it. What llama.cpp throws ends here, as a text.

#include <algorithm>
#include <array>
#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

#include "chat-auto-parser.h"
#include "chat.h"
#include "common.h"
#include "json.h"
#include "llama.h"
#include "log.h"

#include "../ffi/chat.h"
#include "../ffi/complaint.h"
#include "../ffi/text.h"

struct sill_vocabulary {
    llama_model *        model = nullptr;
    const llama_vocab *  vocab = nullptr;
    // The bytes that each token stands for; negative for special tokens.
    std::vector<int32_t> lengths;

    ~sill_vocabulary() {
        if (model) {
            llama_model_free(model);
        }
    }
};

struct sill_chat {
    common_chat_templates_ptr templates;
    // The template can turn thinking on and off.
    bool                      thinks = true;
    // llama.cpp has code of its own for this template: the prompt is not the template's alone.
    bool                      special = false;
};

namespace {

constexpr int SPECIAL = LLAMA_TOKEN_ATTR_CONTROL | LLAMA_TOKEN_ATTR_USER_DEFINED | LLAMA_TOKEN_ATTR_UNKNOWN;

// Whether prompts of this template are not the template's alone. Where that cannot be tried, they may not be.
bool is_special(const std::string & source) {
    if (source.empty()) {
        return false;
    }
    try {
        const common_chat_template    tmpl(source, "", "");
        autoparser::generation_params params;
        params.messages              = common_json::array({ { { "role", "user" }, { "content", "test" } } });
        params.add_generation_prompt = true;
        return common_chat_try_specialized_template(tmpl, tmpl.source(), params).has_value();
    } catch (...) {
        return true;
    }
}

// The inputs of a request that was made plain on the other side (request.rs), as llama-server makes them of it.
common_chat_templates_inputs inputs_of(const sill_chat & chat, const common_json & asked) {
    auto inputs             = inputs_of_request(asked, chat.thinks);
    inputs.reasoning_format = COMMON_REASONING_FORMAT_DEEPSEEK;
    // The prompt is the same, and no grammar is made.
    inputs.tool_choice = COMMON_CHAT_TOOL_CHOICE_NONE;
    // What is made to read replies is of no use here.
    inputs.force_pure_content = !chat.special && inputs.continue_final_message == COMMON_CHAT_CONTINUATION_NONE;
    return inputs;
}

std::string piece(const llama_vocab * vocab, llama_token token) {
    return token == LLAMA_TOKEN_NULL ? std::string() : common_token_to_piece(vocab, token, true);
}

}  // namespace

extern "C" {

// Reads the vocabulary of a file. Null where it cannot be had; `why` then says so.
sill_vocabulary * sill_vocabulary_open(const char * path, sill_text * why) {
    return sill_guarded(why, [&]() -> sill_vocabulary * {
        common_log_pause(common_log_main());
        llama_log_set(hear, nullptr);
        complaint().clear();
        auto out          = std::make_unique<sill_vocabulary>();
        auto params       = llama_model_default_params();
        params.vocab_only = true;
        // Looking at a GPU takes some of its memory for as long as this process lives.
        std::array<ggml_backend_dev_t, 1> none{};
        params.devices = none.data();
        out->model     = llama_model_load_from_file(path, params);
        if (!out->model) {
            sill_put(why, because("llama.cpp cannot read it"), false);
            return nullptr;
        }
        out->vocab = llama_model_get_vocab(out->model);
        if (llama_vocab_type(out->vocab) == LLAMA_VOCAB_TYPE_NONE) {
            sill_put(why, "it has no vocabulary", false);
            return nullptr;
        }
        const auto n = llama_vocab_n_tokens(out->vocab);
        for (llama_token token = 0; token < n; token++) {
            const auto length = static_cast<int32_t>(piece(out->vocab, token).size());
            out->lengths.push_back(llama_vocab_get_attr(out->vocab, token) & LLAMA_TOKEN_ATTR_CONTROL ? -length : length);
        }
        return out.release();
    });
}

void sill_vocabulary_close(sill_vocabulary * vocabulary) { delete vocabulary; }

const int32_t * sill_vocabulary_lengths(const sill_vocabulary * vocabulary, size_t * n) {
    *n = vocabulary->lengths.size();
    return vocabulary->lengths.data();
}

// What is known of it, as a JSON object.
bool sill_vocabulary_facts(const sill_vocabulary * vocabulary, sill_text * out) {
    return sill_guarded(out, [&]() -> bool {
        const auto * vocab   = vocabulary->vocab;
        auto         enders  = common_json::array();
        auto         special = common_json::array();
        for (llama_token token = 0; token < llama_vocab_n_tokens(vocab); token++) {
            const int  attr = llama_vocab_get_attr(vocab, token);
            const auto text = std::string(llama_vocab_get_text(vocab, token));
            if (attr & SPECIAL && !text.empty()) {
                special.push_back(text);
            }
            if (llama_vocab_is_eog(vocab, token) && !text.empty()) {
                enders.push_back({ { "text", text }, { "strips", (attr & LLAMA_TOKEN_ATTR_LSTRIP) != 0 },
                                   { "special", (attr & SPECIAL) != 0 } });
            }
        }
        const char * own  = llama_model_chat_template(vocabulary->model, nullptr);
        auto         all  = common_json::object();
        all["enders"]     = enders;
        all["specials"]   = special;
        all["bos"]        = piece(vocab, llama_vocab_bos(vocab));
        all["eos"]        = piece(vocab, llama_vocab_eos(vocab));
        if (own) {
            all["template"] = own;
        }
        return sill_put(out, all.dump_safe(), true);
    });
}

// The tokens of a text, up to `room` of them; how many there are, or -1 where llama.cpp gave up. `whole`: with what is added
// to a whole prompt.
int64_t sill_vocabulary_tokenize(const sill_vocabulary * vocabulary, const char * text, size_t length, bool whole, int32_t * out,
                                 size_t room) {
    try {
        const auto most = static_cast<int32_t>(std::min(room, size_t(INT32_MAX)));
        const auto n    = llama_tokenize(vocabulary->vocab, text, static_cast<int32_t>(length), out, most, whole, true);
        return n < 0 ? -int64_t(n) : n;
    } catch (...) {
        return -1;
    }
}

// A chat template: this one, or of an empty one the vocabulary's own. Without a vocabulary, the first and the last token have
// these texts. Null where it cannot be used; `why` then says so.
sill_chat * sill_chat_open(const sill_vocabulary * vocabulary, const char * source, size_t length, const char * bos,
                           const char * eos, sill_text * why) {
    return sill_guarded(why, [&]() -> sill_chat * {
        const std::string own(source, length);
        common_log_pause(common_log_main());
        const char * of_model = vocabulary && own.empty() ? llama_model_chat_template(vocabulary->model, nullptr) : nullptr;
        const std::string read = of_model ? of_model : own;
        if (!read.empty() && read != "chatml") {
            check_template(read);
        }
        auto out       = std::make_unique<sill_chat>();
        out->templates = common_chat_templates_init(vocabulary ? vocabulary->model : nullptr, own, bos, eos);
        out->special   = is_special(common_chat_templates_source(out->templates.get())) ||
                       is_special(common_chat_templates_source(out->templates.get(), "tool_use"));
        try {
            out->thinks = common_chat_templates_support_enable_thinking(out->templates.get());
        } catch (...) {
            // It refuses a conversation of one message.
        }
        return out.release();
    });
}

void sill_chat_close(sill_chat * chat) { delete chat; }

// The prompt of a request; `out` is the prompt, or else what went wrong.
bool sill_chat_render(const sill_chat * chat, const char * request, size_t length, sill_text * out) {
    return sill_guarded(out, [&]() -> bool {
        const auto inputs = inputs_of(*chat, common_json::parse(std::string(request, length)));
        return sill_put(out, common_chat_templates_apply(chat->templates.get(), inputs).prompt, true);
    });
}

}  // extern "C"
