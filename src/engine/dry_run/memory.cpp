// llama.cpp's own dry run, for Rust: opens a model without reading or allocating its tensors, sets contexts up without
// allocating them, and says what they would take, to the byte. What llama.cpp throws ends here, as a text.
//
// GPUs that llama.cpp has no backend for in this build are stood in for: a device that takes every operation and holds
// nothing. Graphs are split and laid out by llama.cpp and ggml all the same; only what a real backend adds is missing.

#include <cstdint>
#include <cstring>
#include <exception>
#include <string>
#include <vector>

#include "ggml-backend-impl.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "llama-ext.h"
#include "llama.h"

#include "../ffi/complaint.h"
#include "../ffi/text.h"

// What a context is set up with; the same fields, in the same order, as `RawAsked` in native.rs.
struct sill_asked {
    uint32_t n_ctx;
    uint32_t n_batch;
    uint32_t n_ubatch;
    uint32_t n_seq_max;
    uint32_t n_outputs_max;
    uint32_t n_rs_seq;
    uint32_t type_k;
    uint32_t type_v;
    uint8_t  flash_attn;  // 0: off, 1: on, 2: auto
    uint8_t  swa_full;
    uint8_t  kv_unified;
    uint8_t  offload_kqv;
    uint8_t  op_offload;
};

// What it would take, in bytes; as `RawTold` in native.rs.
struct sill_told {
    uint64_t model[2];    // on devices, in RAM
    uint64_t context[2];
    uint64_t compute[2];
    uint64_t n_ctx;
    uint64_t n_ctx_seq;
};

struct sill_model {
    llama_model * model;
};

namespace {

// The device that stands in for a GPU.

const char * stand_in_name(ggml_backend_dev_t)            { return "GPU"; }
const char * stand_in_description(ggml_backend_dev_t)     { return "stands in for a GPU in dry runs"; }
const char * stand_in_buft_name(ggml_backend_buffer_type_t) { return "GPU"; }
const char * stand_in_backend_name(ggml_backend_t)        { return "GPU"; }
const char * stand_in_reg_name(ggml_backend_reg_t)        { return "GPU"; }

enum ggml_backend_dev_type stand_in_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

void stand_in_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    // Enough for anything: whether it fits is decided elsewhere.
    *free = *total = size_t(1) << 50;
}

void stand_in_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props = {};
    props->name        = stand_in_name(dev);
    props->description = stand_in_description(dev);
    props->type        = stand_in_type(dev);
    stand_in_memory(dev, &props->memory_free, &props->memory_total);
}

size_t stand_in_alignment(ggml_backend_buffer_type_t) {
    return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type());
}

// A buffer of any size without memory behind it. No dry run touches what is in it.
void stand_in_clear(ggml_backend_buffer_t, uint8_t) {}
void stand_in_set(ggml_backend_buffer_t, ggml_tensor *, const void *, size_t, size_t) {}
void stand_in_get(ggml_backend_buffer_t, const ggml_tensor *, void *, size_t, size_t) {}
void * stand_in_base(ggml_backend_buffer_t) { return reinterpret_cast<void *>(uintptr_t(0x1000)); }

ggml_backend_buffer_t stand_in_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_i iface = {};
    iface.get_base   = stand_in_base;
    iface.set_tensor = stand_in_set;
    iface.get_tensor = stand_in_get;
    iface.clear      = stand_in_clear;
    return ggml_backend_buffer_init(buft, iface, nullptr, size);
}

ggml_backend_buffer_type_t stand_in_buft(ggml_backend_dev_t dev) {
    static ggml_backend_buffer_type buft = [] {
        ggml_backend_buffer_type made = {};
        made.iface.get_name      = stand_in_buft_name;
        made.iface.alloc_buffer  = stand_in_alloc;
        made.iface.get_alignment = stand_in_alignment;
        return made;
    }();
    buft.device = dev;
    return &buft;
}

void stand_in_free(ggml_backend_t backend) { delete backend; }

ggml_status stand_in_compute(ggml_backend_t, ggml_cgraph *) { return GGML_STATUS_FAILED; }

ggml_backend_t stand_in_init(ggml_backend_dev_t dev, const char *) {
    static ggml_guid guid = { 0x77, 0x69, 0x6e, 0x64, 0x6f, 0x77, 0x73, 0x69, 0x6c, 0x6c, 0x2d, 0x64, 0x72, 0x79, 0x72, 0x75 };
    auto * made = new ggml_backend {};
    made->guid                = &guid;
    made->iface.get_name      = stand_in_backend_name;
    made->iface.free          = stand_in_free;
    made->iface.graph_compute = stand_in_compute;
    made->device              = dev;
    return made;
}

bool stand_in_supports_op(ggml_backend_dev_t, const ggml_tensor *) { return true; }

// As CUDA's and Vulkan's: what is evaluated for many tokens at once is worth copying weights for that lie in RAM
// (`ggml_backend_cuda_device_offload_op`).
bool stand_in_offload_op(ggml_backend_dev_t, const ggml_tensor * op) {
    constexpr int64_t least = 32;
    switch (op->op) {
        case GGML_OP_GET_ROWS:   return false;
        case GGML_OP_MUL_MAT:    return op->ne[1] >= least;
        case GGML_OP_MUL_MAT_ID:
        case GGML_OP_ROPE:
        case GGML_OP_ROPE_BACK:  return op->ne[2] >= least;
        default:                 return ggml_nrows(op) >= least;
    }
}

bool stand_in_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) {
    return buft == stand_in_buft(dev);
}

size_t stand_in_count(ggml_backend_reg_t) { return 1; }

ggml_backend_dev_t stand_in_device();

ggml_backend_dev_t stand_in_get_device(ggml_backend_reg_t, size_t) { return stand_in_device(); }

ggml_backend_dev_t stand_in_device() {
    static ggml_backend_reg reg = [] {
        ggml_backend_reg made = {};
        made.api_version            = GGML_BACKEND_API_VERSION;
        made.iface.get_name         = stand_in_reg_name;
        made.iface.get_device_count = stand_in_count;
        made.iface.get_device       = stand_in_get_device;
        return made;
    }();
    static ggml_backend_device device = [] {
        ggml_backend_device made = {};
        made.iface.get_name        = stand_in_name;
        made.iface.get_description = stand_in_description;
        made.iface.get_memory      = stand_in_memory;
        made.iface.get_type        = stand_in_type;
        made.iface.get_props       = stand_in_props;
        made.iface.init_backend    = stand_in_init;
        made.iface.get_buffer_type = stand_in_buft;
        made.iface.supports_op     = stand_in_supports_op;
        made.iface.supports_buft   = stand_in_supports_buft;
        made.iface.offload_op      = stand_in_offload_op;
        made.reg                   = &reg;
        return made;
    }();
    return &device;
}

// Whether llama.cpp has a backend for a GPU that is here.
bool has_gpu() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_GPU) != nullptr ||
           ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_IGPU) != nullptr;
}

} // namespace

extern "C" {

// The version of llama.cpp in this build.
const char * sill_version(void) {
    return llama_version();
}

// Opens a model with its last n_gpu_layers layers (all if negative) on a GPU if there is one, and the experts of the first
// cpu_moe blocks (all of them if negative) in RAM. Null, and why, if llama.cpp does not take it.
sill_model * sill_open(const char * path, bool gpu, int32_t n_gpu_layers, int32_t cpu_moe, sill_text * why) {
    return sill_guarded(why, [&]() -> sill_model * {
        llama_log_set(hear, nullptr);
        complaint().clear();
        llama_backend_init();
        std::vector<ggml_backend_dev_t> devices;
        if (gpu && !has_gpu()) {
            devices.push_back(stand_in_device());
        }
        devices.push_back(nullptr);
        // As common/common.h writes them for --cpu-moe and --n-cpu-moe.
        std::vector<std::string> patterns;
        const std::string experts = "\\.ffn_(up|down|gate|gate_up)_(ch|)exps";
        if (cpu_moe < 0) {
            patterns.push_back(experts);
        }
        for (int32_t il = 0; il < cpu_moe; ++il) {
            patterns.push_back("blk\\." + std::to_string(il) + experts);
        }
        std::vector<llama_model_tensor_buft_override> overrides;
        for (const auto & pattern : patterns) {
            overrides.push_back({ pattern.c_str(), ggml_backend_cpu_buffer_type() });
        }
        overrides.push_back({ nullptr, nullptr });

        auto params = llama_model_default_params();
        // Of those that are here it chooses itself.
        params.devices               = gpu && has_gpu() ? nullptr : devices.data();
        params.tensor_buft_overrides = patterns.empty() ? nullptr : overrides.data();
        params.n_gpu_layers          = gpu ? n_gpu_layers : 0;
        params.load_mode             = LLAMA_LOAD_MODE_NONE;
        params.use_extra_bufts       = false;
        params.no_alloc              = true;
        auto * model = llama_model_load_from_file(path, params);
        if (model == nullptr) {
            sill_put(why, complaint().empty() ? "llama.cpp does not load it" : complaint(), false);
            return nullptr;
        }
        return new sill_model { model };
    });
}

void sill_close(sill_model * opened) {
    if (opened != nullptr) {
        llama_model_free(opened->model);
        delete opened;
    }
}

// What a context would take. False, and why, if llama.cpp does not set it up.
bool sill_cost(sill_model * opened, const sill_asked * asked, sill_told * told, sill_text * why) {
    return sill_guarded(why, [&]() -> bool {
        complaint().clear();
        auto params = llama_context_default_params();
        params.n_ctx           = asked->n_ctx;
        params.n_batch         = asked->n_batch;
        params.n_ubatch        = asked->n_ubatch;
        params.n_seq_max       = asked->n_seq_max;
        params.n_outputs_max   = asked->n_outputs_max;
        params.n_rs_seq        = asked->n_rs_seq;
        params.type_k          = static_cast<ggml_type>(asked->type_k);
        params.type_v          = static_cast<ggml_type>(asked->type_v);
        params.flash_attn_type = asked->flash_attn == 0   ? LLAMA_FLASH_ATTN_TYPE_DISABLED
                                 : asked->flash_attn == 1 ? LLAMA_FLASH_ATTN_TYPE_ENABLED
                                                          : LLAMA_FLASH_ATTN_TYPE_AUTO;
        params.swa_full        = asked->swa_full;
        params.kv_unified      = asked->kv_unified;
        params.offload_kqv     = asked->offload_kqv;
        params.op_offload      = asked->op_offload;
        params.no_perf         = true;
        auto * context = llama_init_from_model(opened->model, params);
        if (context == nullptr) {
            sill_put(why, complaint().empty() ? "llama.cpp does not set it up" : complaint(), false);
            return false;
        }
        *told = {};
        for (const auto & [buft, part] : llama_get_memory_breakdown(context)) {
            const int side = ggml_backend_buft_is_host(buft) ? 1 : 0;
            told->model[side]   += part.model;
            told->context[side] += part.context;
            told->compute[side] += part.compute;
        }
        told->n_ctx     = llama_n_ctx(context);
        told->n_ctx_seq = llama_n_ctx_seq(context);
        llama_free(context);
        return true;
    });
}

}
