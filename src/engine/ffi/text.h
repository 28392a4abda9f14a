// Texts that C++ hands to Rust: what the edges have in common.
#pragma once

#include <cstddef>
#include <string>

// A text that the other side reads and gives back to sill_text_free.
struct sill_text {
    char * bytes;
    size_t length;
};

// Hands a text over; `result` comes back, or false where there is no memory for it.
bool sill_put(sill_text * out, const std::string & text, bool result);
