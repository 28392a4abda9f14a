//! NVIDIA's GPUs through a library that stands in for the driver's: loaded, called and laid out as NVML is (nvml.h of
//! CUDA 12), so that what is between the machine and our numbers is the real thing.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

const LIBRARY: &str = r#"
#include <stddef.h>
#include <string.h>
#include <stdio.h>

enum { OK = 0, INVALID = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6, INSUFFICIENT = 7, VERSION = 25, LOST = 15 };
typedef unsigned long long ull;
typedef struct { unsigned version; ull total, reserved, free, used; } memory_v2;
typedef struct { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; } pci;
typedef struct { unsigned pid; ull used; unsigned gpu_instance, compute_instance; } process;

static int handles[16];
static int number(void * device) { return (int)((int *)device - handles); }

int nvmlInit_v2(void) { return OK; }
int nvmlShutdown(void) { return OK; }
int nvmlSystemGetDriverVersion(char * out, unsigned length) { snprintf(out, length, "570.86.10"); return OK; }
const char * nvmlErrorString(int code) { return "an error"; }
int nvmlDeviceGetCount_v2(unsigned * count) { *count = 4; return OK; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void ** device) {
    if (index == 3) return LOST;
    *device = handles + index;
    return OK;
}

int nvmlDeviceGetName(void * device, char * out, unsigned length) {
    const char * names[] = { "NVIDIA GeForce RTX 4090", "NVIDIA A100-SXM4-40GB", "NVIDIA GB10" };
    snprintf(out, length, "%s", names[number(device) % 4]);
    return OK;
}

// Parts have handles from 5 on: 5, 9, … are those of device 1.
int nvmlDeviceGetMemoryInfo_v2(void * device, memory_v2 * out) {
    if (out->version != (sizeof(memory_v2) | (2u << 24))) return VERSION;
    const int which = number(device);
    if (which == 2) return NOT_SUPPORTED;
    const ull gib = 1ull << 30;
    out->total    = which == 0 ? 24 * gib : which == 1 ? 40 * gib : 10 * gib;
    out->reserved = gib / 2;
    out->used     = which == 0 ? 3 * gib : which == 9 ? 4 * gib : 0;
    out->free     = out->total - out->reserved - out->used;
    return OK;
}

int nvmlDeviceGetPciInfo_v3(void * device, pci * out) {
    memset(out, 0, sizeof *out);
    out->bus = 1 + number(device) % 4;
    snprintf(out->bus_id, sizeof out->bus_id, "00000000:%02X:00.0", 0xA0 + out->bus);
    return OK;
}

int nvmlDeviceGetComputeRunningProcesses_v3(void * device, unsigned * count, process * out) {
    const unsigned there = number(device) == 0 ? 2 : 0;
    const unsigned room  = *count;
    *count = there;
    if (room < there) return INSUFFICIENT;
    for (unsigned i = 0; i < there; i++) {
        out[i] = (process) { 100 + i, (ull) (i + 1) << 30, ~0u, ~0u };
    }
    return OK;
}

int nvmlDeviceGetMigMode(void * device, unsigned * current, unsigned * pending) {
    if (number(device) != 1) return NOT_SUPPORTED;
    *current = *pending = 1;
    return OK;
}

int nvmlDeviceGetMaxMigDeviceCount(void * device, unsigned * count) { *count = number(device) == 1 ? 7 : 0; return OK; }

int nvmlDeviceGetMigDeviceHandleByIndex(void * device, unsigned index, void ** part) {
    if (number(device) != 1) return INVALID;
    if (index != 0 && index != 2) return NOT_FOUND;
    *part = handles + (index == 0 ? 5 : 9);
    return OK;
}
"#;

fn doctor(libraries: &Path) -> Value {
    let out = Command::new(env!("CARGO_BIN_EXE_windowsill"))
        .args(["doctor", "--json", "--upstream", "http://127.0.0.1:9"])
        .env("LD_LIBRARY_PATH", libraries)
        .env("WINDOWSILL_DATA_DIR", libraries.join("data"))
        .output()
        .unwrap();
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&out.stderr)))
}

#[test]
fn gpus_are_read_through_the_drivers_library() {
    let folder = tempfile::tempdir().unwrap();
    let (source, library) = (folder.path().join("nvml.c"), folder.path().join("libnvidia-ml.so.1"));
    std::fs::write(&source, LIBRARY).unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(compiled.success());

    let gpus = doctor(folder.path())["machine"]["gpus"].clone();
    let gib = |n: f64| (n * f64::from(1 << 30)) as u64;
    let own = |total: f64, free: f64| json!({"total_bytes": gib(total), "free_bytes": gib(free), "source": "NVML"});
    let shown: Vec<Value> = gpus
        .as_array()
        .unwrap()
        .iter()
        .map(|gpu| json!([gpu["name"], gpu["bus"], gpu["memory"], gpu["bytes"]]))
        .collect();
    assert_eq!(
        shown[..3],
        [
            json!(["NVIDIA GeForce RTX 4090", "0000:a1:00.0", "own", own(24.0, 20.5)]),
            json!(["NVIDIA A100-SXM4-40GB MIG 0", "0000:a2:00.0", "own", own(10.0, 9.5)]),
            json!(["NVIDIA A100-SXM4-40GB MIG 2", "0000:a2:00.0", "own", own(10.0, 5.5)]),
        ],
        "{gpus}"
    );
    assert_eq!([&shown[3][0], &shown[3][2]], [&json!("NVIDIA GB10"), &json!("unified")], "{gpus}");
    assert_eq!([&shown[4][0], &shown[4][2]], [&json!("NVIDIA GPU 3"), &json!("unknown")], "{gpus}");
    assert_eq!(shown.len(), 5, "{gpus}");

    // A library that is no NVML, and one that is empty, are said to be missing, and nothing more.
    std::fs::write(&source, "int nothing(void) { return 0; }").unwrap();
    let compiled = Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&library).arg(&source).status().unwrap();
    assert!(compiled.success());
    assert_eq!(doctor(folder.path())["machine"]["gpus"], json!([]));
    std::fs::write(&library, "").unwrap();
    assert_eq!(doctor(folder.path())["machine"]["gpus"], json!([]));
}
