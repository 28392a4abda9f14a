#include "text.h"

#include <cstdlib>
#include <cstring>

bool sill_put(sill_text * out, const std::string & text, bool result) {
    out->bytes  = static_cast<char *>(std::malloc(text.size() + 1));
    out->length = out->bytes ? text.size() : 0;
    if (out->bytes) {
        std::memcpy(out->bytes, text.data(), text.size());
    }
    return out->bytes && result;
}

extern "C" void sill_text_free(sill_text * text) {
    std::free(text->bytes);
    text->bytes  = nullptr;
    text->length = 0;
}
