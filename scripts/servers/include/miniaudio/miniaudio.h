/*
 * Stands in for miniaudio, which the Go module of Ollama leaves out (module archives drop `vendor/` folders).
 * It declares what llama.cpp's mtmd-helper uses and refuses to decode: the Ollama built for our tests hears nothing.
 */
#pragma once
#include <stddef.h>

typedef int ma_result;
typedef unsigned long long ma_uint64;
typedef struct { int unused; } ma_decoder_config;
typedef struct { int unused; } ma_decoder;
enum { MA_SUCCESS = 0, MA_NOT_IMPLEMENTED = -29 };
enum { ma_format_f32 = 5 };

static inline ma_decoder_config ma_decoder_config_init(int format, int channels, int rate) {
    (void)format; (void)channels; (void)rate;
    ma_decoder_config config = { 0 };
    return config;
}
static inline ma_result ma_decoder_init_memory(const void *data, size_t len, const ma_decoder_config *config, ma_decoder *decoder) {
    (void)data; (void)len; (void)config; (void)decoder;
    return MA_NOT_IMPLEMENTED;
}
static inline ma_result ma_decoder_get_length_in_pcm_frames(ma_decoder *decoder, ma_uint64 *frames) {
    (void)decoder;
    *frames = 0;
    return MA_NOT_IMPLEMENTED;
}
static inline ma_result ma_decoder_read_pcm_frames(ma_decoder *decoder, void *out, ma_uint64 count, ma_uint64 *read) {
    (void)decoder; (void)out; (void)count;
    *read = 0;
    return MA_NOT_IMPLEMENTED;
}
static inline ma_result ma_decoder_uninit(ma_decoder *decoder) {
    (void)decoder;
    return MA_SUCCESS;
}
