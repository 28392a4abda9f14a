// Texts that C++ hands to Rust: what the edges have in common.
#pragma once

#include <cstddef>
#include <exception>
#include <string>

// A text that the other side reads and gives back to sill_text_free.
struct sill_text {
    char * bytes;
    size_t length;
};

// Hands a text over; `result` comes back, or false where there is no memory for it.
bool sill_put(sill_text * out, const std::string & text, bool result);

// Does what may throw: what llama.cpp throws ends here, as a text, and `failed` comes back.
template <typename F> auto sill_guarded(sill_text * why, const F & act, decltype(act()) failed = {}) -> decltype(act()) {
    try {
        return act();
    } catch (const std::exception & e) {
        sill_put(why, e.what(), false);
    } catch (...) {
        sill_put(why, "llama.cpp gave up", false);
    }
    return failed;
}
