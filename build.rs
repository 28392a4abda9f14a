//! With the feature `engine`: compiles the C++ edges in `src/engine/` (the memory dry run's, the vocabularies',
//! generation's, and what they have in common) against the sources of the very llama.cpp that llama-cpp-sys-2 built. Does
//! nothing else.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    #[cfg(feature = "engine")]
    engine::compile();
}

#[cfg(feature = "engine")]
mod engine {
    use std::path::{Path, PathBuf};

    /// Each edge, what it is called, and where its headers are.
    const EDGES: [(&str, &str, &[&str]); 4] = [
        ("src/engine/dry_run/memory.cpp", "windowsill_dry_run", &["src", "include", "ggml/include", "ggml/src"]),
        ("src/engine/vocabulary/edge.cpp", "windowsill_vocabulary", &["common", "src", "include", "ggml/include"]),
        ("src/engine/generate/edge.cpp", "windowsill_generate", &["common", "src", "include", "ggml/include"]),
        // Behind those that call it: linkers look once.
        ("src/engine/ffi/text.cpp", "windowsill_ffi", &[]),
    ];

    /// What they include of ours.
    const HEADERS: [&str; 3] = ["src/engine/ffi/chat.h", "src/engine/ffi/complaint.h", "src/engine/ffi/text.h"];

    pub(super) fn compile() {
        let sources_of_ours = EDGES.iter().map(|(edge, ..)| *edge).chain(HEADERS);
        sources_of_ours.for_each(|file| println!("cargo::rerun-if-changed={file}"));
        let sources = sources().expect(
            "llama.cpp's sources were not found beside what llama-cpp-sys-2 built: run `cargo clean -p llama-cpp-sys-2` and \
             build again, or build with --no-default-features (without the engine)",
        );
        for (edge, name, folders) in EDGES {
            let folders = folders.iter().map(|folder| sources.join(folder));
            let mut build = cc::Build::new();
            build.cpp(true).std("c++17").file(edge).includes(folders);
            // Of functions in llama.cpp's headers.
            build.flag_if_supported("-Wno-unused-function").compile(name);
        }
    }

    /// Where llama-cpp-sys-2 had CMake build llama.cpp from; CMake's own record of its build says so.
    fn sources() -> Option<PathBuf> {
        let told = std::env::var_os("DEP_LLAMA_GGML_CMAKE_DIR").map(PathBuf::from);
        let told = told.iter().filter_map(|folder| folder.parent()?.parent());
        // A target folder that was moved: our own output is its neighbor.
        let ours = PathBuf::from(std::env::var_os("OUT_DIR")?);
        let builds = ours.parent()?.parent()?;
        let neighbors = std::fs::read_dir(builds).into_iter().flatten().flatten().map(|entry| entry.path());
        let neighbors = neighbors
            .filter(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("llama-cpp-sys-2-")));
        told.map(Path::to_owned).chain(neighbors.map(|path| path.join("out"))).find_map(|out| source_of(&out))
    }

    fn source_of(out: &Path) -> Option<PathBuf> {
        let cache = std::fs::read_to_string(out.join("build/CMakeCache.txt")).ok()?;
        let home = cache.lines().find_map(|line| line.strip_prefix("CMAKE_HOME_DIRECTORY:INTERNAL="))?;
        let home = PathBuf::from(home.trim());
        home.join("src/llama-ext.h").is_file().then_some(home)
    }
}
