//! The edge to what ggml says of how it was compiled.

#![allow(unsafe_code)]

use super::Instructions;

/// Those that ggml's CPU backend may be compiled to use. Without AVX, it uses what every processor of 64 bits has, and SSE 4.2,
/// which is older than anything that a model runs on.
#[cfg(target_arch = "x86_64")]
pub(super) fn instructions() -> Vec<Instructions> {
    use llama_cpp_sys_2 as ggml;

    // SAFETY: they take nothing, and return numbers that the compiler put there.
    let used = unsafe {
        [
            ggml::ggml_cpu_has_avx(),
            ggml::ggml_cpu_has_avx2(),
            ggml::ggml_cpu_has_fma(),
            ggml::ggml_cpu_has_f16c(),
            ggml::ggml_cpu_has_bmi2(),
            ggml::ggml_cpu_has_avx512(),
            ggml::ggml_cpu_has_avx512_vbmi(),
            ggml::ggml_cpu_has_avx512_vnni(),
            ggml::ggml_cpu_has_avx512_bf16(),
        ]
    };
    let there = [
        ("AVX", std::is_x86_feature_detected!("avx")),
        ("AVX2", std::is_x86_feature_detected!("avx2")),
        ("FMA", std::is_x86_feature_detected!("fma")),
        ("F16C", std::is_x86_feature_detected!("f16c")),
        ("BMI2", std::is_x86_feature_detected!("bmi2")),
        ("AVX-512", std::is_x86_feature_detected!("avx512f")),
        ("AVX-512 VBMI", std::is_x86_feature_detected!("avx512vbmi")),
        ("AVX-512 VNNI", std::is_x86_feature_detected!("avx512vnni")),
        ("AVX-512 BF16", std::is_x86_feature_detected!("avx512bf16")),
    ];
    used.into_iter().zip(there).map(|(used, (name, there))| Instructions { name, used: used != 0, there }).collect()
}

/// On other machines, ggml is compiled for what all of their kind have.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn instructions() -> Vec<Instructions> {
    Vec::new()
}
