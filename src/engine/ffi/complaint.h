// What llama.cpp complains of: it says why in its log alone, and what follows is only that it failed.
#pragma once

#include <cctype>
#include <string>

#include "ggml.h"

// The first complaint since it was last cleared. A process that llama.cpp works in does one thing at a time.
inline std::string & complaint() {
    static std::string text;
    return text;
}

// For llama_log_set.
inline void hear(ggml_log_level level, const char * text, void *) {
    auto & first = complaint();
    if (level == GGML_LOG_LEVEL_ERROR && first.empty()) {
        first = text;
        while (!first.empty() && std::isspace(static_cast<unsigned char>(first.back()))) {
            first.pop_back();
        }
    }
}

// What failed, and why, if llama.cpp said so.
inline std::string because(const std::string & what) { return complaint().empty() ? what : what + ": " + complaint(); }
