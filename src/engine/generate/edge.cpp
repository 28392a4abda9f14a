// llama.cpp at work, for Rust: a model with one context, and requests that are answered in it one after the other. What
// stands here is what needs llama.cpp's own types: its chat templates and parsers, its samplers, its state. Which tokens are
// evaluated, kept and sent is decided on the other side. What llama.cpp throws ends here, as a text.

#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "chat.h"
#include "common.h"
#include "fit.h"
#include "json-schema-to-grammar.h"
#include "json.h"
#include "llama-ext.h"
#include "llama.h"
#include "log.h"
#include "sampling.h"

#include "../ffi/chat.h"
#include "../ffi/complaint.h"
#include "../ffi/text.h"

// What a context is set up with; the same fields, in the same order, as `RawSetup` in native.rs.
struct sill_setup {
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_ubatch;
    int32_t  threads;
    int32_t  threads_batch;
    int32_t  type_k;
    int32_t  type_v;
    // Layers on GPUs, from the last, the output layer counted as one; or as many as fit (FIT).
    int32_t  gpu_layers;
    // The share of each GPU's memory that is left free where as many as fit go there.
    double   headroom;
};

constexpr int32_t FIT = -2;

// What there is to know of an opened model; as `RawFacts` in native.rs.
struct sill_facts {
    uint32_t n_ctx;
    uint32_t trained;
    uint32_t n_batch;
    uint32_t n_vocab;
    uint64_t bytes;
    uint64_t parameters;
    // What model, context and scratch buffers take (bytes): on GPUs, in RAM.
    uint64_t on_gpus;
    uint64_t in_ram;
    // Its state cannot be cut back to any token: sliding windows, recurrent layers.
    uint8_t  no_rewind;
};

struct sill_engine {
    llama_model *             model = nullptr;
    llama_context *           ctx   = nullptr;
    const llama_vocab *       vocab = nullptr;
    common_chat_templates_ptr chat;
    std::string               no_chat;
    llama_batch               batch{};
    // Evaluation is to be given up: the only thing that other threads touch.
    std::atomic<bool>         stop{ false };

    ~sill_engine() {
        if (batch.token) {
            llama_batch_free(batch);
        }
        release();
    }

    void release() {
        if (ctx) {
            llama_free(ctx);
        }
        if (model) {
            llama_model_free(model);
        }
        ctx   = nullptr;
        model = nullptr;
    }
};

struct sill_job {
    llama_tokens              prompt;
    // Tokens at the prompt's end that only ask for the reply.
    size_t                    asking = 0;
    common_sampler_ptr        sampler;
    common_params_sampling    sampling;
    bool                      chat = false;
    common_chat_parser_params syntax;
    common_chat_msg           said;
    std::vector<std::string>  ids;
    std::vector<std::string>  stops;
    // So many of the likeliest tokens are told of each place; none where it is below 0.
    int32_t                   likely = -1;
    // Their odds are told as they were when one was chosen, and not as the model has them.
    bool                      as_chosen = false;
};

namespace {

bool stopped(void * data) { return static_cast<sill_engine *>(data)->stop.load(std::memory_order_relaxed); }

// What is wrong with a chat template.
std::string fault(const sill_engine & engine, const std::string & own, const char * otherwise) {
    const char * of_model = llama_model_chat_template(engine.model, nullptr);
    try {
        check_template(own.empty() && of_model ? of_model : own);
    } catch (const std::exception & e) {
        return e.what();
    }
    return otherwise;
}

void numbers(const common_json & asked, common_params_sampling & s) {
    s.seed               = asked.value("seed", s.seed);
    s.temp               = asked.value("temperature", s.temp);
    s.top_k              = asked.value("top_k", s.top_k);
    s.top_p              = asked.value("top_p", s.top_p);
    s.min_p              = asked.value("min_p", s.min_p);
    s.typ_p              = asked.value("typical_p", s.typ_p);
    s.top_n_sigma        = asked.value("top_n_sigma", s.top_n_sigma);
    s.xtc_probability    = asked.value("xtc_probability", s.xtc_probability);
    s.xtc_threshold      = asked.value("xtc_threshold", s.xtc_threshold);
    s.dynatemp_range     = asked.value("dynatemp_range", s.dynatemp_range);
    s.dynatemp_exponent  = asked.value("dynatemp_exponent", s.dynatemp_exponent);
    s.penalty_last_n     = asked.value("repeat_last_n", s.penalty_last_n);
    s.penalty_repeat     = asked.value("repeat_penalty", s.penalty_repeat);
    s.penalty_freq       = asked.value("frequency_penalty", s.penalty_freq);
    s.penalty_present    = asked.value("presence_penalty", s.penalty_present);
    s.dry_multiplier     = asked.value("dry_multiplier", s.dry_multiplier);
    s.dry_base           = asked.value("dry_base", s.dry_base);
    s.dry_allowed_length = asked.value("dry_allowed_length", s.dry_allowed_length);
    s.dry_penalty_last_n = asked.value("dry_penalty_last_n", s.dry_penalty_last_n);
    s.mirostat           = asked.value("mirostat", s.mirostat);
    s.mirostat_tau       = asked.value("mirostat_tau", s.mirostat_tau);
    s.mirostat_eta       = asked.value("mirostat_eta", s.mirostat_eta);
    s.n_prev             = std::max(s.n_prev, s.penalty_last_n);
}

// `logit_bias`: pairs of a token, or of a text for each of its tokens, and of a number, or `false` for never.
void biases(const sill_engine & engine, const common_json & asked, common_params_sampling & s) {
    const llama_token n_vocab = llama_vocab_n_tokens(engine.vocab);
    const auto        wanted  = asked.value("logit_bias", common_json::array());
    for (const auto & pair : wanted) {
        const auto & of   = pair.at(0);
        const float  bias = pair.at(1).is_number() ? pair.at(1).get<float>() : -INFINITY;
        if (of.is_string()) {
            for (const auto id : common_tokenize(engine.vocab, of.get<std::string>(), false)) {
                s.logit_bias.push_back({ id, bias });
            }
            continue;
        }
        const auto id = of.get<int64_t>();
        if (id < 0 || id >= n_vocab) {
            throw std::invalid_argument("`logit_bias`: there is no token " + std::to_string(id) + ": the last is " + std::to_string(n_vocab - 1));
        }
        s.logit_bias.push_back({ static_cast<llama_token>(id), bias });
    }
    if (asked.value("ignore_eos", false)) {
        for (llama_token id = 0; id < n_vocab; id++) {
            if (llama_vocab_is_eog(engine.vocab, id)) {
                s.logit_bias.push_back({ id, -INFINITY });
            }
        }
    }
}

// What the model's own template writes a prompt from.
common_chat_templates_inputs inputs_of(const sill_engine & engine, const common_json & asked) {
    if (!engine.chat) {
        throw std::invalid_argument("the model's chat template cannot be used: " + engine.no_chat);
    }
    auto inputs        = inputs_of_request(asked, common_chat_templates_support_enable_thinking(engine.chat.get()));
    inputs.tool_choice = common_chat_tool_choice_parse_oaicompat(asked.value("tool_choice", "auto"));
    inputs.grammar     = asked.value("grammar", "");
    const auto caps    = common_chat_templates_get_caps(engine.chat.get());
    const auto able    = caps.find("supports_parallel_tool_calls");
    inputs.parallel_tool_calls = asked.value("parallel_tool_calls", able != caps.end() && able->second);
    inputs.reasoning_format    = common_reasoning_format_from_name(asked.value("reasoning_format", "deepseek"));
    return inputs;
}

// Has the model's own template write the prompt, and sets up what its replies are to keep to and are read by: as llama-server
// does (tools/server/server-common.cpp and server-task.cpp of llama.cpp).
void set_chat(const sill_engine & engine, const common_json & asked, sill_job & job) {
    const auto inputs = inputs_of(engine, asked);
    const bool tools = !inputs.tools.empty() && inputs.tool_choice != COMMON_CHAT_TOOL_CHOICE_NONE;
    auto       chat  = common_chat_templates_apply(engine.chat.get(), inputs);

    job.prompt = common_tokenize(engine.vocab, chat.prompt, true, true);
    job.asking = common_tokenize(engine.vocab, chat.generation_prompt, false, true).size();
    job.stops  = chat.additional_stops;

    auto & s = job.sampling;
    if (!chat.grammar.empty()) {
        const auto type = tools                          ? COMMON_GRAMMAR_TYPE_TOOL_CALLS
                          : !inputs.json_schema.empty() ? COMMON_GRAMMAR_TYPE_OUTPUT_FORMAT
                                                         : COMMON_GRAMMAR_TYPE_USER;
        s.grammar = { type, chat.grammar };
    } else if (!inputs.grammar.empty()) {
        s.grammar = { COMMON_GRAMMAR_TYPE_USER, inputs.grammar };
    }
    s.grammar_lazy      = chat.grammar_lazy;
    s.generation_prompt = chat.generation_prompt;
    for (const auto & text : chat.preserved_tokens) {
        const auto ids = common_tokenize(engine.vocab, text, false, true);
        if (ids.size() == 1) {
            s.preserved_tokens.insert(ids[0]);
        }
    }
    for (auto trigger : chat.grammar_triggers) {
        if (trigger.type == COMMON_GRAMMAR_TRIGGER_TYPE_WORD) {
            const auto ids = common_tokenize(engine.vocab, trigger.value, false, true);
            if (ids.size() == 1 && s.preserved_tokens.count(ids[0])) {
                trigger.type  = COMMON_GRAMMAR_TRIGGER_TYPE_TOKEN;
                trigger.token = ids[0];
            }
        }
        s.grammar_triggers.push_back(std::move(trigger));
    }
    if (!chat.thinking_start_tag.empty() && !chat.thinking_end_tags.empty()) {
        s.reasoning_budget_tokens = asked.value("thinking_budget_tokens", -1);
        s.reasoning_budget_start  = common_tokenize(engine.vocab, chat.thinking_start_tag, false, true);
        for (const auto & tag : chat.thinking_end_tags) {
            s.reasoning_budget_end.push_back(common_tokenize(engine.vocab, tag, false, true));
        }
        s.reasoning_budget_forced = s.reasoning_budget_end.front();
    }

    job.chat                    = true;
    job.syntax                  = common_chat_parser_params(chat);
    job.syntax.reasoning_format = inputs.reasoning_format;
    job.syntax.parse_tool_calls = true;
    job.syntax.is_continuation  = inputs.continue_final_message != COMMON_CHAT_CONTINUATION_NONE;
    if (!chat.parser.empty()) {
        job.syntax.parser.load(chat.parser);
    }
}

std::string call_id() {
    static const char  letters[] = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
    std::random_device any;
    std::string        id = "call_";
    for (int i = 0; i < 24; i++) {
        id += letters[any() % (sizeof(letters) - 1)];
    }
    return id;
}

common_json delta(const common_chat_msg_diff & diff) {
    auto out = common_json::object();
    if (!diff.reasoning_content_delta.empty()) {
        out["reasoning_content"] = diff.reasoning_content_delta;
    }
    if (!diff.content_delta.empty()) {
        out["content"] = diff.content_delta;
    }
    if (diff.tool_call_index != std::string::npos) {
        auto call     = common_json::object();
        call["index"] = diff.tool_call_index;
        if (!diff.tool_call_delta.id.empty()) {
            call["id"]   = diff.tool_call_delta.id;
            call["type"] = "function";
        }
        auto function = common_json::object();
        if (!diff.tool_call_delta.name.empty()) {
            function["name"] = diff.tool_call_delta.name;
        }
        function["arguments"] = diff.tool_call_delta.arguments;
        call["function"]      = function;
        auto calls            = common_json::array();
        calls.push_back(call);
        out["tool_calls"] = calls;
    }
    return out;
}

bool is_utf8(const std::string & text) {
    for (size_t at = 0; at < text.size();) {
        const auto   lead   = static_cast<unsigned char>(text[at]);
        const size_t length = lead < 0x80 ? 1 : lead >> 5 == 0x6 ? 2 : lead >> 4 == 0xe ? 3 : lead >> 3 == 0x1e ? 4 : 0;
        if (length == 0 || at + length > text.size()) {
            return false;
        }
        for (size_t i = 1; i < length; i++) {
            if ((static_cast<unsigned char>(text[at + i]) & 0xc0) != 0x80) {
                return false;
            }
        }
        at += length;
    }
    return true;
}

// A token's text; its bytes where these are a part of a letter.
common_json spelled(const std::string & piece) {
    if (is_utf8(piece)) {
        return piece;
    }
    auto bytes = common_json::array();
    for (const char byte : piece) {
        bytes.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
    }
    return bytes;
}

common_json with_odds(const sill_engine & engine, llama_token token, const char * as, double odds) {
    const auto piece = common_token_to_piece(engine.vocab, token, true);
    auto       bytes = common_json::array();
    for (const char byte : piece) {
        bytes.push_back(static_cast<int>(static_cast<unsigned char>(byte)));
    }
    auto out     = common_json::object();
    out["id"]    = token;
    out["token"] = piece;
    out["bytes"] = bytes;
    out[as]      = odds;
    return out;
}

// A token that was chosen, with so many of the likeliest in its place, and the logarithms of their odds: as the model has them,
// before anything is done to them to choose one.
common_json odds(const sill_engine & engine, llama_token chosen, int32_t likely) {
    const float * logits  = llama_get_logits_ith(engine.ctx, -1);
    const int32_t n_vocab = llama_vocab_n_tokens(engine.vocab);
    const float   most    = *std::max_element(logits, logits + n_vocab);
    double        sum     = 0;
    for (int32_t i = 0; i < n_vocab; i++) {
        sum += std::exp(static_cast<double>(logits[i] - most));
    }
    const auto of = [&](llama_token token) { return std::max(logits[token] - most - std::log(sum), -1e9); };
    std::vector<llama_token> all(n_vocab);
    std::iota(all.begin(), all.end(), 0);
    const auto n = std::min(likely, n_vocab);
    std::partial_sort(all.begin(), all.begin() + n, all.end(), [&](llama_token a, llama_token b) { return logits[a] > logits[b]; });
    auto top = common_json::array();
    for (int32_t i = 0; i < n; i++) {
        top.push_back(with_odds(engine, all[i], "logprob", of(all[i])));
    }
    auto out            = with_odds(engine, chosen, "logprob", of(chosen));
    out["top_logprobs"] = top;
    return out;
}

// A token that was chosen, with so many of the likeliest in its place, and their odds as they were when it was chosen. A token that
// could not be chosen is not among them.
common_json odds_as_chosen(const sill_engine & engine, common_sampler * sampler, llama_token chosen, int32_t likely) {
    const auto & among = *common_sampler_get_candidates(sampler, true);
    double       of    = 0;
    auto         top   = common_json::array();
    for (size_t i = 0; i < among.size; i++) {
        const auto & one = among.data[i];
        if (one.id == chosen) {
            of = one.p;
        }
        if (static_cast<int32_t>(top.size()) < likely && one.p > 0) {
            top.push_back(with_odds(engine, one.id, "prob", one.p));
        }
    }
    auto out         = with_odds(engine, chosen, "prob", of);
    out["top_probs"] = top;
    return out;
}

// The tokens of a prompt: a text, or texts and tokens in a row. What the vocabulary puts before a prompt stands before a text that comes
// first alone, as llama-server has it.
std::vector<llama_token> written(const sill_engine & engine, const common_json & prompt) {
    if (prompt.is_string()) {
        return common_tokenize(engine.vocab, prompt.get<std::string>(), true, true);
    }
    std::vector<llama_token> out;
    for (size_t i = 0; i < prompt.size(); i++) {
        const auto & part = prompt.at(i);
        if (part.is_string()) {
            const auto tokens = common_tokenize(engine.vocab, part.get<std::string>(), i == 0, true);
            out.insert(out.end(), tokens.begin(), tokens.end());
            continue;
        }
        const auto token = part.get<int64_t>();
        if (token < 0 || token >= llama_vocab_n_tokens(engine.vocab)) {
            throw std::invalid_argument("there is no token " + std::to_string(token));
        }
        out.push_back(static_cast<llama_token>(token));
    }
    return out;
}

// Where the model's tensors go; what llama.cpp is told of it points in here.
struct placement {
    std::vector<float>                             split     = std::vector<float>(llama_max_devices());
    std::vector<llama_model_tensor_buft_override>  overrides = std::vector<llama_model_tensor_buft_override>(llama_max_tensor_buft_overrides());
    std::vector<size_t>                            margins   = std::vector<size_t>(llama_max_devices());
    std::array<ggml_backend_dev_t, 1>              none{};
};

// Nothing goes to GPUs.
void put_in_ram(llama_model_params & params, placement & where) {
    params              = llama_model_default_params();
    params.devices      = where.none.data();
    params.n_gpu_layers = 0;
}

// Puts on GPUs what fits their free memory, as llama-server does: whole layers, and of mixtures of experts parts of them. If
// not even a context without any layer fits, nothing goes there. Throws what a dry run throws.
void put_what_fits(const char * path, double headroom, llama_model_params & params, llama_context_params & context, placement & where) {
    std::vector<ggml_backend_dev_t> devices;
    uint32_t                        layers, trained, experts;
    const auto told = [&] {
        return common_get_device_memory_data(path, &params, &context, devices, layers, trained, experts, GGML_LOG_LEVEL_ERROR);
    };
    const auto before = told();
    for (size_t i = 0; i < devices.size(); i++) {
        where.margins[i] = static_cast<size_t>(std::ceil(static_cast<double>(before[i].total) * headroom));
    }
    const auto status = common_fit_params(path, &params, &context, where.split.data(), where.overrides.data(), where.margins.data(),
                                          context.n_ctx, nullptr, GGML_LOG_LEVEL_ERROR);
    const auto after = told();
    bool       fits  = status == COMMON_PARAMS_FIT_STATUS_SUCCESS;
    for (size_t i = 0; i < devices.size(); i++) {
        const auto & device = after[i];
        const auto   needs  = static_cast<int64_t>(device.model + device.context + device.compute + where.margins[i]);
        fits                = fits && needs <= device.free;
    }
    if (!fits) {
        put_in_ram(params, where);
    }
}

// Loads the model and sets its context up. Why that cannot be, or nothing.
std::string set_up(sill_engine & engine, const char * path, const llama_model_params & params, const llama_context_params & context) {
    complaint().clear();
    engine.model = llama_model_load_from_file(path, params);
    if (!engine.model) {
        return because("llama.cpp cannot load it");
    }
    if (!llama_model_has_decoder(engine.model) || llama_model_has_encoder(engine.model) || llama_model_is_diffusion(engine.model)) {
        return "it is no model that continues a text token by token";
    }
    engine.ctx = llama_init_from_model(engine.model, context);
    return engine.ctx ? "" : because("llama.cpp cannot set up a context of " + std::to_string(context.n_ctx) + " tokens");
}

}  // namespace

extern "C" {

// With a chat template of one's own, or an empty one for the file's. Null where the model or a context for it cannot be had;
// `why` then says so.
sill_engine * sill_engine_open(const char * path, const sill_setup * setup, const char * chat_template, size_t length,
                               sill_text * why) {
    return sill_guarded(why, [&]() -> sill_engine * {
        // Else they would go to standard output.
        common_log_pause(common_log_main());
        llama_log_set(hear, nullptr);
        complaint().clear();
        auto engine        = std::make_unique<sill_engine>();
        auto params        = llama_model_default_params();
        auto context       = llama_context_default_params();
        context.n_ctx      = setup->n_ctx;
        context.n_batch    = setup->n_batch;
        context.n_ubatch   = setup->n_ubatch;
        context.n_seq_max  = 1;
        context.n_outputs_max   = 1;
        context.n_threads       = setup->threads;
        context.n_threads_batch = setup->threads_batch;
        context.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_AUTO;
        context.type_k          = static_cast<ggml_type>(setup->type_k);
        context.type_v          = static_cast<ggml_type>(setup->type_v);
        context.swa_full        = false;
        context.abort_callback  = stopped;
        context.abort_callback_data = engine.get();
        placement  where;
        const bool fit = setup->gpu_layers == FIT && (ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) ||
                                                      ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU));
        if (fit) {
            try {
                put_what_fits(path, setup->headroom, params, context, where);
            } catch (const std::exception &) {
                // Where there can be no dry run there can be no more than a try, in RAM. What is wrong with the file shows there.
                put_in_ram(params, where);
            }
        } else if (setup->gpu_layers == 0) {
            put_in_ram(params, where);
        } else if (setup->gpu_layers != FIT) {
            params.n_gpu_layers = setup->gpu_layers;
        }
        auto failed = set_up(*engine, path, params, context);
        if (!failed.empty() && fit && params.devices != where.none.data()) {
            // Somebody else took the memory that was free.
            engine->release();
            put_in_ram(params, where);
            failed = set_up(*engine, path, params, context);
        }
        if (!failed.empty()) {
            sill_put(why, failed, false);
            return nullptr;
        }
        engine->vocab = llama_model_get_vocab(engine->model);
        engine->batch = llama_batch_init(static_cast<int32_t>(llama_n_batch(engine->ctx)), 0, 1);
        const std::string own(chat_template, length);
        try {
            engine->chat = common_chat_templates_init(engine->model, own);
        } catch (const std::exception & e) {
            engine->no_chat = fault(*engine, own, e.what());
        }
        return engine.release();
    });
}

void sill_engine_close(sill_engine * engine) { delete engine; }

// `gpus` are the names of those that hold some of it, a line each.
bool sill_engine_facts(const sill_engine * engine, sill_facts * out, sill_text * gpus) {
    std::string names;
    out->on_gpus = out->in_ram = 0;
    for (const auto & [type, part] : llama_get_memory_breakdown(engine->ctx)) {
        const uint64_t bytes = part.model + part.context + part.compute;
        if (ggml_backend_buft_is_host(type)) {
            out->in_ram += bytes;
            continue;
        }
        out->on_gpus += bytes;
        auto *            device = ggml_backend_buft_get_device(type);
        const std::string name   = device ? std::string(ggml_backend_dev_name(device)) + " (" + ggml_backend_dev_description(device) + ")\n" : "";
        if (bytes > 0 && names.find(name) == std::string::npos) {
            names += name;
        }
    }
    out->n_ctx      = llama_n_ctx(engine->ctx);
    out->trained    = static_cast<uint32_t>(llama_model_n_ctx_train(engine->model));
    out->n_batch    = llama_n_batch(engine->ctx);
    out->n_vocab    = static_cast<uint32_t>(llama_vocab_n_tokens(engine->vocab));
    out->bytes      = llama_model_size(engine->model);
    out->parameters = llama_model_n_params(engine->model);
    out->no_rewind  = llama_model_n_swa(engine->model) > 0 || llama_model_is_recurrent(engine->model) ||
                     llama_model_is_hybrid(engine->model);
    return sill_put(gpus, names, true);
}

// Gives up what is being evaluated, or takes that back. May be called from any thread.
void sill_engine_stop(sill_engine * engine, bool stop) { engine->stop.store(stop, std::memory_order_relaxed); }

// Forgets all tokens from the nth on. Where that cannot be, nothing is changed.
bool sill_engine_keep(sill_engine * engine, int32_t n) {
    return llama_memory_seq_rm(llama_get_memory(engine->ctx), 0, n, -1);
}

void sill_engine_forget(sill_engine * engine) { llama_memory_clear(llama_get_memory(engine->ctx), true); }

// Evaluates tokens, the first at this place; what llama_decode returns. At most n_batch of them.
int32_t sill_engine_evaluate(sill_engine * engine, const int32_t * tokens, size_t n, int32_t at) {
    try {
        auto & batch   = engine->batch;
        batch.n_tokens = static_cast<int32_t>(n);
        for (size_t i = 0; i < n; i++) {
            batch.token[i]     = tokens[i];
            batch.pos[i]       = at + static_cast<llama_pos>(i);
            batch.n_seq_id[i]  = 1;
            batch.seq_id[i][0] = 0;
            batch.logits[i]    = i + 1 == n;
        }
        return llama_decode(engine->ctx, engine->batch);
    } catch (...) {
        return -100;
    }
}

// The state as it is now: all of it, or only what cannot be cut back. How many bytes it takes.
size_t sill_engine_state_size(sill_engine * engine, bool all) {
    try {
        return llama_state_seq_get_size_ext(engine->ctx, 0, all ? 0 : LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY);
    } catch (...) {
        return 0;
    }
}

bool sill_engine_state_get(sill_engine * engine, bool all, uint8_t * out, size_t length) {
    try {
        const auto flags = all ? 0 : LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
        return llama_state_seq_get_data_ext(engine->ctx, out, length, 0, flags) == length;
    } catch (...) {
        return false;
    }
}

bool sill_engine_state_set(sill_engine * engine, bool all, const uint8_t * bytes, size_t length) {
    try {
        const auto flags = all ? 0 : LLAMA_STATE_SEQ_FLAGS_PARTIAL_ONLY;
        return llama_state_seq_set_data_ext(engine->ctx, bytes, length, 0, flags) == length;
    } catch (...) {
        return false;
    }
}

// A request as a JSON object: `messages` and what belongs to them, or `prompt`; and `sampling`. Null where it cannot be
// answered; `why` then says so.
sill_job * sill_job_begin(const sill_engine * engine, const char * request, size_t length, sill_text * why) {
    return sill_guarded(why, [&]() -> sill_job * {
        const auto asked    = common_json::parse(std::string(request, length));
        auto       job      = std::make_unique<sill_job>();
        const auto sampling = asked.value("sampling", common_json::object());
        numbers(sampling, job->sampling);
        job->likely    = asked.value("likely", -1);
        job->as_chosen = asked.value("as_chosen", false);
        biases(*engine, sampling, job->sampling);
        job->sampling.no_perf = true;
        if (asked.contains("messages")) {
            set_chat(*engine, asked, *job);
        } else {
            job->prompt = written(*engine, asked.at("prompt"));
            const auto grammar = asked.contains("json_schema") ? json_schema_to_grammar(asked.at("json_schema"))
                                                               : asked.value("grammar", "");
            if (!grammar.empty()) {
                job->sampling.grammar = { COMMON_GRAMMAR_TYPE_USER, grammar };
            }
        }
        job->sampler.reset(common_sampler_init(engine->model, job->sampling));
        if (!job->sampler) {
            sill_put(why, "the sampler cannot be set up", false);
            return nullptr;
        }
        for (const auto token : job->prompt) {
            common_sampler_accept(job->sampler.get(), token, false);
        }
        return job.release();
    });
}

// Tells of texts and tokens what needs no evaluation, as llama-server's `/apply-template`, `/detokenize` and `/tokenize` do: of
// `messages` the prompt, of `tokens` their text, of `content` its tokens.
bool sill_engine_tell(const sill_engine * engine, const char * request, size_t length, sill_text * out) {
    return sill_guarded(out, [&]() -> bool {
        const auto asked = common_json::parse(std::string(request, length));
        auto       told  = common_json::object();
        if (asked.contains("messages")) {
            told["prompt"] = common_chat_templates_apply(engine->chat.get(), inputs_of(*engine, asked)).prompt;
        } else if (asked.contains("tokens")) {
            const auto & tokens = asked.at("tokens");
            std::string  text;
            for (const auto token : written(*engine, tokens)) {
                text += common_token_to_piece(engine->vocab, token, true);
            }
            told["content"] = text;
        } else {
            const bool special = asked.value("add_special", false);
            const bool parse   = asked.value("parse_special", true);
            const bool pieces  = asked.value("with_pieces", false);
            auto       all     = common_json::array();
            for (const auto token : common_tokenize(engine->vocab, asked.at("content").get<std::string>(), special, parse)) {
                if (!pieces) {
                    all.push_back(token);
                    continue;
                }
                auto entry     = common_json::object();
                entry["id"]    = token;
                entry["piece"] = spelled(common_token_to_piece(engine->vocab, token, true));
                all.push_back(entry);
            }
            told["tokens"] = all;
        }
        return sill_put(out, told.dump_safe(), true);
    });
}

void sill_job_end(sill_job * job) { delete job; }

const int32_t * sill_job_prompt(const sill_job * job, size_t * n, size_t * asking) {
    *n      = job->prompt.size();
    *asking = job->asking;
    return job->prompt.data();
}

// The texts that end a reply with this template, as a JSON array.
bool sill_job_stops(const sill_job * job, sill_text * out) {
    return sill_put(out, common_json(job->stops).dump_safe(), true);
}

// Chooses the next token behind what was evaluated last: 1 that the reply goes on with `out`, 0 that it ends, -1 that
// llama.cpp gave up. Where it was asked for, `likely` are the odds of that token and of the likeliest.
int32_t sill_job_next(const sill_engine * engine, sill_job * job, int32_t * token, sill_text * out, sill_text * likely) {
    return sill_guarded(out, [&]() -> int32_t {
        *token = common_sampler_sample(job->sampler.get(), engine->ctx, -1);
        common_sampler_accept(job->sampler.get(), *token, true);
        if (llama_vocab_is_eog(engine->vocab, *token)) {
            return 0;
        }
        if (job->likely >= 0) {
            const auto told = job->as_chosen ? odds_as_chosen(*engine, job->sampler.get(), *token, job->likely)
                                             : odds(*engine, *token, job->likely);
            sill_put(likely, told.dump_safe(), true);
        }
        const bool shown = job->sampling.preserved_tokens.count(*token) > 0;
        sill_put(out, common_token_to_piece(engine->vocab, *token, shown), true);
        return 1;
    }, -1);
}

// Reads the reply so far, as the template writes replies: what is new in it, as a JSON array of OpenAI's deltas. `partial`:
// more is to come.
bool sill_job_read(sill_job * job, const char * text, size_t length, bool partial, sill_text * out) {
    return sill_guarded(out, [&]() -> bool {
        auto read = common_chat_parse(std::string(text, length), partial, job->syntax);
        auto all  = common_json::array();
        if (!read.empty()) {
            read.set_tool_call_ids(job->ids, call_id);
            for (const auto & diff : common_chat_msg_diff::compute_diffs(job->said, read)) {
                all.push_back(delta(diff));
            }
            job->said = std::move(read);
        }
        return sill_put(out, all.dump_safe(), true);
    });
}

}  // extern "C"
