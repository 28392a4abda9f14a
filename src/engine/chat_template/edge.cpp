// llama.cpp's own engine for chat templates (common/jinja), for Rust: reads a template, says what its trials of it found,
// and renders it. What llama.cpp throws ends here, as a text.

#include <cstdint>
#include <ctime>
#include <exception>
#include <string>

#include "jinja/caps.h"
#include "jinja/lexer.h"
#include "jinja/parser.h"
#include "jinja/runtime.h"
#include "jinja/value.h"
#include "json.h"

#include "../ffi/text.h"

struct sill_chat_template {
    jinja::program prog;
    std::string    source;
};

extern "C" {

// What a clock on the wall shows at a time: both in seconds since 1970, the clock's as if it were in Greenwich.
int64_t sill_wall_clock(int64_t now) {
    const std::time_t time = static_cast<std::time_t>(now);
    std::tm           shown{};
#ifdef _WIN32
    return localtime_s(&shown, &time) == 0 ? static_cast<int64_t>(_mkgmtime(&shown)) : now;
#else
    return localtime_r(&time, &shown) ? static_cast<int64_t>(timegm(&shown)) : now;
#endif
}

// Null where llama.cpp does not read it; `why` then says so.
sill_chat_template * sill_chat_template_read(const char * source, size_t length, sill_text * why) {
    try {
        jinja::lexer lexer;
        auto         read = lexer.tokenize(std::string(source, length));
        auto *       out  = new sill_chat_template{ jinja::parse_from_tokens(read), {} };
        out->source       = std::move(read.source);
        return out;
    } catch (const std::exception & e) {
        sill_put(why, e.what(), false);
    } catch (...) {
        sill_put(why, "llama.cpp gave up", false);
    }
    return nullptr;
}

void sill_chat_template_free(sill_chat_template * chat) {
    delete chat;
}

// Bits, from the lowest: content as a string, content as parts, a system role, arguments as objects.
bool sill_chat_template_caps(sill_chat_template * chat, uint32_t * out) {
    try {
        const auto caps = jinja::caps_get(chat->prog);
        *out = uint32_t(caps.supports_string_content) | uint32_t(caps.supports_typed_content) << 1 |
               uint32_t(caps.supports_system_role) << 2 | uint32_t(caps.supports_object_arguments) << 3;
        return true;
    } catch (...) {
        return false;
    }
}

// Renders with the variables of a JSON object, when a clock on the wall shows `shown`; `out` is the prompt, or else what went
// wrong.
bool sill_chat_template_render(const sill_chat_template * chat, const char * variables, size_t length, int64_t shown,
                               sill_text * out) {
    try {
        jinja::context ctx(chat->source);
        // Off by no more than what the clock was put forward or back within a day.
        ctx.current_time = static_cast<std::time_t>(shown - (sill_wall_clock(shown) - shown));
        jinja::global_from_json(ctx, common_json::parse(std::string(variables, length)), true);
        jinja::runtime runtime(ctx);
        const auto     results = runtime.execute(chat->prog);
        return sill_put(out, jinja::runtime::gather_string_parts(results)->as_string().str(), true);
    } catch (const std::exception & e) {
        return sill_put(out, e.what(), false);
    } catch (...) {
        return sill_put(out, "llama.cpp gave up", false);
    }
}

}  // extern "C"
