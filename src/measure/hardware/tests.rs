//! Machines as folders: what is read of them, and what a model may take.

use std::path::Path;

use super::room::{Room, Taken, room, size};
use super::*;

const GIB: u64 = 1 << 30;

/// A machine made of files; `(path, text)`.
struct Machine(tempfile::TempDir);

impl Machine {
    fn new(files: &[(&str, &str)]) -> Machine {
        let machine = Machine(tempfile::tempdir().unwrap());
        for (path, text) in files {
            machine.file(path, text.as_bytes());
        }
        machine
    }

    fn file(&self, path: &str, bytes: &[u8]) {
        let path = self.0.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }

    fn root(&self) -> &Path {
        self.0.path()
    }

    fn read(&self, nvml: &Nvml) -> Hardware {
        self.read_with(nvml, Ok(Vec::new()))
    }

    fn read_with(&self, nvml: &Nvml, devices: Result<Vec<Device>, String>) -> Hardware {
        read(&Place { root: self.root().to_owned(), process: None }, &Told { nvml: nvml.clone(), devices })
    }

    fn plain(&self) -> Hardware {
        self.read(&absent())
    }
}

fn absent() -> Nvml {
    Nvml::Absent("libnvidia-ml.so.1: cannot open shared object file".into())
}

fn card(total: u64, free: u64) -> NvmlDevice {
    NvmlDevice {
        name: "NVIDIA GeForce RTX 4090".into(),
        bus: Some("00000000:01:00.0".into()),
        memory: NvmlMemory::Known { total, free },
        processes: vec![(7, 1 << 20)],
    }
}

const MEMINFO: (&str, &str) = (
    "proc/meminfo",
    "MemTotal:       33554432 kB\nMemFree:         1048576 kB\nMemAvailable:   25165824 kB\nBuffers:          262144 kB\n\
     Cached:         23068672 kB\nShmem:            131072 kB\nSReclaimable:     524288 kB\nHugePages_Total:       0\n",
);

fn own(hardware: &Hardware) -> &Memory {
    match &hardware.gpus[0].memory {
        GpuMemory::Own(memory) => memory,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_machine_without_a_gpu_is_no_error() {
    let hardware = Machine::new(&[MEMINFO]).plain();
    let ram = hardware.ram.clone().unwrap();
    assert_eq!((ram.total, ram.free, ram.source.as_str()), (32 * GIB, 24 * GIB, "/proc/meminfo MemAvailable"));
    assert_eq!((&hardware.gpus[..], &hardware.limit, &hardware.notes[..]), (&[][..], &None, &[][..]));

    let room = room(&hardware, Taken::default(), 0.25);
    assert_eq!((room.host, room.devices.len(), room.unified), (16 * GIB, 0, false));
    assert_eq!(
        room.because,
        ["RAM: 16.0 GiB = 24.0 GiB free of 32.0 GiB (/proc/meminfo MemAvailable) - 25% left free"]
    );
}

#[test]
fn an_old_kernel_without_mem_available_has_free_memory_and_cache() {
    let text = MEMINFO.1.replace("MemAvailable", "Whatever");
    let hardware = Machine::new(&[("proc/meminfo", &text)]).plain();
    // 1 GiB free, 22.75 GiB of buffers, cache and slabs, less what lives in tmpfs.
    assert_eq!(hardware.ram.as_ref().unwrap().free, GIB + (256 + 22528 + 512 - 128) * (1 << 20));
    assert_eq!(hardware.notes.len(), 1);
}

#[test]
fn garbage_is_labelled_and_never_a_failure() {
    let cases: &[&[(&str, &str)]] = &[
        &[],
        &[("proc/meminfo", "")],
        &[("proc/meminfo", "MemTotal: many kB\nMemAvailable: -3 kB\n\u{0}\u{1}: :\n")],
        &[("proc/meminfo", "MemTotal: 99999999999999999999 kB\nMemFree: 18446744073709551615 kB\n")],
        &[("proc/meminfo", "MemTotal: 0 kB\nMemAvailable: 0 kB\n")],
    ];
    for files in cases {
        let hardware = Machine::new(files).plain();
        assert_eq!(hardware.ram, None, "{files:?}");
        assert_eq!(hardware.notes, ["how much RAM there is cannot be read"], "{files:?}");
        let room = room(&hardware, Taken { device: u64::MAX, host: u64::MAX }, 0.08);
        assert_eq!((room.host, room.devices.len()), (0, 0));
    }
    // More available than there is.
    let odd = [("proc/meminfo", "MemTotal: 1024 kB\nMemAvailable: 4096 kB\n")];
    assert_eq!(Machine::new(&odd).plain().ram.unwrap().free, 1 << 20);

    let machine = Machine::new(&[
        MEMINFO,
        ("proc/self/cgroup", "0::/a/../../b\nnonsense\n7:memory\n"),
        ("sys/fs/cgroup/memory.max", "lots"),
        ("sys/fs/cgroup/memory.current", "12"),
        ("sys/class/drm/card0/device/vendor", "0x1002"),
        ("sys/class/drm/card0/device/mem_info_vram_total", "a lot"),
        ("sys/class/drm/card1/device/vendor", "0x1002"),
        ("sys/class/drm/card1/device/mem_info_vram_total", "17179869184"),
        ("sys/class/drm/card1-DP-1/device/vendor", "0x1002"),
        ("sys/class/drm/card2/device/vendor", "0x8086"),
        ("sys/class/drm/version", "drm 1.1.0"),
    ]);
    let hardware = machine.plain();
    assert_eq!(hardware.limit, None);
    assert_eq!(hardware.gpus.len(), 3, "{:?}", hardware.gpus);
    assert!(matches!(&hardware.gpus[2].memory, GpuMemory::Unknown(_)));
    assert!(matches!(&hardware.gpus[0].memory, GpuMemory::Unknown(why) if why.contains("VRAM")));
    assert!(matches!(&hardware.gpus[1].memory, GpuMemory::Own(m) if m.total == 16 * GIB && m.free == 0));
    assert!(hardware.notes[0].contains("mem_info_vram_used"), "{:?}", hardware.notes);
    let room = room(&hardware, Taken::default(), 0.0);
    assert_eq!((room.device_bytes(), room.host), (0, 24 * GIB));
}

const INTEL: (&str, &str) = ("sys/class/drm/card1/device/vendor", "0x8086");
const INTEL_SLOT: (&str, &str) = ("sys/class/drm/card1/device/uevent", "DRIVER=xe\nPCI_SLOT_NAME=0000:03:00.0\n");
const INTEL_TILE: (&str, &str) = ("sys/class/drm/card1/device/tile0/physical_vram_size_bytes", "12884901888\n");

#[test]
fn an_intel_card_tells_its_memory_by_tile_and_root_what_is_in_use() {
    let usage = "  use_type: 1\n  size: 12884901888\n  usage: 1073741824\ndefault_page_size: 4KiB\n";
    let debug = ("sys/kernel/debug/dri/0000:03:00.0/tile0/vram_mm", usage);
    let hardware = Machine::new(&[MEMINFO, INTEL, INTEL_SLOT, INTEL_TILE, debug]).plain();
    let memory = own(&hardware);
    assert_eq!((memory.total, memory.free, memory.source.as_str()), (12 * GIB, 11 * GIB, "debugfs vram_mm"));
    assert_eq!(hardware.notes, [""; 0]);
}

#[test]
fn what_processes_hold_of_an_intel_card_is_added_up_once_a_client() {
    let client = "drm-driver:\txe\ndrm-client-id:\t7\ndrm-pdev:\t0000:03:00.0\ndrm-total-vram0:\t4 GiB\n\
                  drm-resident-vram0:\t2097152 KiB\ndrm-resident-system:\t512 MiB\n";
    let other = client.replace("id:\t7", "id:\t8").replace("2097152 KiB", "1024 MiB");
    let elsewhere = client.replace("id:\t7", "id:\t9").replace("03:00.0", "04:00.0");
    let hardware = Machine::new(&[
        MEMINFO,
        INTEL,
        INTEL_SLOT,
        INTEL_TILE,
        ("proc/12/fdinfo/3", client),
        ("proc/12/fdinfo/4", client),
        ("proc/13/fdinfo/3", &other),
        ("proc/13/fdinfo/5", &elsewhere),
        ("proc/13/fdinfo/6", "pos:\t0\nflags:\t02\n"),
    ])
    .plain();
    assert_eq!((own(&hardware).total, own(&hardware).free), (12 * GIB, 9 * GIB));
    assert_eq!(hardware.notes.len(), 1, "{:?}", hardware.notes);
}

#[test]
fn an_older_intel_driver_tells_local_memory() {
    let total = ("sys/class/drm/card1/lmem_total_bytes", "17179869184");
    let hardware =
        Machine::new(&[MEMINFO, INTEL, total, ("sys/class/drm/card1/lmem_avail_bytes", "8589934592")]).plain();
    assert_eq!((own(&hardware).total, own(&hardware).free), (16 * GIB, 8 * GIB));
    let hardware = Machine::new(&[MEMINFO, INTEL, total]).plain();
    assert_eq!((own(&hardware).free, hardware.notes.len()), (0, 1));
}

#[test]
fn an_integrated_intel_gpu_shares_ram_and_counts_only_without_a_card() {
    let vendor = ("sys/class/drm/card0/device/vendor", "0x8086");
    let slot = ("sys/class/drm/card0/device/uevent", "PCI_SLOT_NAME=0000:00:02.0\n");
    let alone = Machine::new(&[MEMINFO, vendor, slot]).plain();
    assert!(matches!(&alone.gpus[..], [Gpu { memory: GpuMemory::Unified { part: None, .. }, .. }]), "{:?}", alone.gpus);
    assert_eq!(
        (room(&alone, Taken::default(), 0.0).total(), room(&alone, Taken::default(), 0.0).unified),
        (24 * GIB, true)
    );
    let both = Machine::new(&[MEMINFO, vendor, slot, INTEL, INTEL_SLOT, INTEL_TILE]).plain();
    assert_eq!((both.gpus.len(), own(&both).total), (1, 12 * GIB));
    let nvml = Nvml::Devices(vec![card(24 * GIB, 20 * GIB)]);
    assert_eq!(Machine::new(&[MEMINFO, vendor, slot]).read(&nvml).gpus.len(), 1);
}

#[test]
fn limits_of_cgroups_count_file_cache_as_free() {
    let mib = 1u64 << 20;
    let v2 = |max: &str, high: &str| {
        Machine::new(&[
            MEMINFO,
            ("proc/self/cgroup", "0::/system.slice/ollama.service"),
            ("sys/fs/cgroup/system.slice/ollama.service/memory.max", max),
            ("sys/fs/cgroup/system.slice/ollama.service/memory.high", high),
            ("sys/fs/cgroup/system.slice/ollama.service/memory.current", "6442450944"),
            (
                "sys/fs/cgroup/system.slice/ollama.service/memory.stat",
                "anon 1073741824\nfile 5368709120\ninactive_file 4294967296\nactive_file 1048576\n",
            ),
            ("sys/fs/cgroup/system.slice/memory.max", "max"),
            ("sys/fs/cgroup/system.slice/memory.current", "99"),
        ])
        .plain()
        .limit
    };
    let file = |name: &str| format!("/sys/fs/cgroup/system.slice/ollama.service/{name}");
    let limit = v2("8589934592", "max").unwrap();
    assert_eq!((limit.max, limit.source), (8 * GIB, file("memory.max")));
    assert_eq!(limit.room, 8 * GIB - (6 * GIB - 4 * GIB - mib));
    let limit = v2("8589934592", "4294967296").unwrap();
    assert_eq!((limit.max, limit.source, limit.room), (4 * GIB, file("memory.high"), 2 * GIB + mib));
    assert_eq!(v2("max", "max"), None);

    // In a container the group is the mount, whatever its name outside; and a limit above is a limit too.
    let inside = Machine::new(&[
        MEMINFO,
        ("proc/self/cgroup", "0::/docker/0123"),
        ("sys/fs/cgroup/memory.max", "2147483648"),
        ("sys/fs/cgroup/memory.current", "1073741824"),
    ]);
    assert_eq!(inside.plain().limit.unwrap().room, GIB);

    let v1 = Machine::new(&[
        MEMINFO,
        ("proc/self/cgroup", "12:cpu,cpuacct:/x\n4:memory:/lxc/box\n0::/\n"),
        ("proc/42/cgroup", "4:memory:/other"),
        ("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712"),
        ("sys/fs/cgroup/memory/lxc/box/memory.limit_in_bytes", "4294967296"),
        ("sys/fs/cgroup/memory/lxc/box/memory.usage_in_bytes", "3221225472"),
        (
            "sys/fs/cgroup/memory/lxc/box/memory.stat",
            "inactive_file 1\ntotal_inactive_file 1073741824\ntotal_active_file 0\n",
        ),
        ("sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1073741824"),
        ("sys/fs/cgroup/memory/other/memory.usage_in_bytes", "0"),
    ]);
    let limit = v1.plain().limit.unwrap();
    assert_eq!((limit.max, limit.room), (4 * GIB, 2 * GIB));
    assert_eq!(limit.source, "/sys/fs/cgroup/memory/lxc/box/memory.limit_in_bytes");
    let of_server = {
        let place = Place { root: v1.root().to_owned(), process: Some(42) };
        read(&place, &Told { nvml: absent(), devices: Ok(Vec::new()) })
    };
    assert_eq!(of_server.limit.unwrap().room, GIB, "the server's own limit is what counts");

    let room = room(&v1.plain(), Taken { device: 0, host: GIB / 2 }, 0.25);
    assert_eq!(room.host, 2 * GIB + GIB / 2 - GIB);
    assert!(
        room.because[0].starts_with("RAM within the limit on the server: 1.5 GiB = 2.0 GiB free of 4.0 GiB"),
        "{room:?}"
    );
}

#[test]
fn a_card_of_nvidia_is_a_budget_of_its_own() {
    let devices = Nvml::Devices(vec![card(24 * GIB, 10 * GIB), card(24 * GIB, 20 * GIB)]);
    let hardware = Machine::new(&[MEMINFO]).read(&devices);
    let of = |taken: Taken| room(&hardware, taken, 0.125);
    let free = of(Taken::default());
    assert_eq!(free.devices.iter().map(|d| d.bytes / GIB).collect::<Vec<_>>(), [7, 17]);
    assert_eq!((free.host, free.unified, free.total()), (20 * GIB, false, 44 * GIB));
    // What the loaded model holds is free for it: never more than is in use.
    let mine = of(Taken { device: 16 * GIB, host: 0 });
    assert_eq!(mine.devices.iter().map(|d| d.bytes / GIB).collect::<Vec<_>>(), [21, 19]);
    let absurd = of(Taken { device: u64::MAX, host: u64::MAX });
    assert_eq!((absurd.device_bytes(), absurd.host), (42 * GIB, 28 * GIB));
    assert_eq!(room(&hardware, Taken::default(), 1.0).total(), 0);
}

#[test]
fn nvidia_without_memory_of_its_own_shares_one_budget() {
    let gb10 = NvmlDevice { name: "NVIDIA GB10".into(), memory: NvmlMemory::NotSupported, ..card(0, 0) };
    let zero = NvmlDevice { memory: NvmlMemory::Known { total: 0, free: 0 }, ..gb10.clone() };
    for device in [gb10, zero] {
        let hardware = Machine::new(&[MEMINFO]).read(&Nvml::Devices(vec![device.clone(), device]));
        let room = room(&hardware, Taken { device: 2 * GIB, host: 0 }, 0.0);
        assert_eq!((room.device_bytes(), room.host, room.total(), room.unified), (26 * GIB, 0, 26 * GIB, true));
    }
    let tegra = Machine::new(&[MEMINFO, ("proc/device-tree/compatible", "nvidia,p3737\0nvidia,tegra234\0")]).plain();
    assert!(matches!(tegra.gpus[..], [Gpu { memory: GpuMemory::Unified { part: None, .. }, .. }]), "{tegra:?}");
}

#[test]
fn trouble_with_nvml_is_said() {
    let driver = Machine::new(&[MEMINFO, ("proc/driver/nvidia/version", "NVRM version: 580")]).plain();
    assert!(matches!(&driver.gpus[0].memory, GpuMemory::Unknown(why) if why.contains("libnvidia-ml")));
    assert_eq!(driver.notes.len(), 1);
    let broken = NvmlDevice { memory: NvmlMemory::Error("GPU is lost".into()), ..card(0, 0) };
    let hardware = Machine::new(&[MEMINFO]).read(&Nvml::Devices(vec![broken]));
    let room = room(&hardware, Taken::default(), 0.0);
    assert_eq!((room.devices.len(), room.host), (0, 24 * GIB));
    assert!(room.because[1].contains("GPU is lost"), "{room:?}");
}

#[test]
fn gpu_memory_that_is_a_numa_node_is_not_counted_twice() {
    // GH200: 96 GiB of HBM are node 1; 8 GiB of it hold page cache. MemTotal counts both nodes.
    let gh200 = Machine::new(&[
        ("proc/meminfo", "MemTotal: 167772160 kB\nMemAvailable: 125829120 kB\n"),
        ("proc/driver/nvidia/gpus/0009:01:00.0/numa_status", "Node:\t\t1\nStatus:\t\tonline\n"),
        (
            "sys/devices/system/node/node1/meminfo",
            "Node 1 MemTotal:  100663296 kB\nNode 1 MemFree: 83886080 kB\nNode 1 FilePages: 8388608 kB\nNode 1 Shmem: 0 kB\n",
        ),
    ]);
    let device = NvmlDevice { bus: Some("00000009:01:00.0".into()), ..card(96 * GIB, 80 * GIB) };
    let hardware = gh200.read(&Nvml::Devices(vec![device]));
    assert_eq!(own(&hardware).free, 88 * GIB);
    let ram = hardware.ram.as_ref().unwrap();
    assert_eq!((ram.total, ram.free), (64 * GIB, 32 * GIB));
}

fn amd(vram: u64, used: u64, gtt: u64, more: &[(&str, &[u8])]) -> Machine {
    let machine = Machine::new(&[MEMINFO, ("sys/class/drm/card1/device/vendor", "0x1002\n")]);
    let put = |name: &str, text: &[u8]| machine.file(&format!("sys/class/drm/card1/device/{name}"), text);
    put("mem_info_vram_total", vram.to_string().as_bytes());
    put("mem_info_vram_used", used.to_string().as_bytes());
    put("mem_info_gtt_total", gtt.to_string().as_bytes());
    put("mem_info_gtt_used", GIB.to_string().as_bytes());
    more.iter().for_each(|(name, text)| put(name, text));
    machine
}

#[test]
fn amd_cards_have_vram_and_apus_take_ram() {
    // A card, with more GTT than VRAM, as on any machine with much RAM.
    for sign in [("gpu_metrics", &b"\x60\x00\x01\x03"[..]), ("mem_info_vram_vendor", &b"samsung\n"[..])] {
        let hardware = amd(8 * GIB, GIB, 16 * GIB, &[sign, ("product_name", b"AMD Radeon RX 7600")]).plain();
        assert_eq!((own(&hardware).total, own(&hardware).free), (8 * GIB, 7 * GIB), "{sign:?}");
        assert_eq!(hardware.gpus[0].name, "AMD Radeon RX 7600");
        assert_eq!(room(&hardware, Taken::default(), 0.0).total(), 31 * GIB);
    }
    // An APU with a small carve-out: one budget, of which GTT bounds the GPU's part.
    for sign in [("gpu_metrics", &b"\x60\x00\x03\x00"[..]), ("nothing", &b""[..])] {
        let hardware = amd(GIB / 2, 0, 16 * GIB, &[sign]).plain();
        let room = room(&hardware, Taken::default(), 0.0);
        assert_eq!((room.device_bytes(), room.host, room.unified), (15 * GIB, 9 * GIB, true), "{room:?}");
    }
    // An APU whose firmware sets most of the memory aside: RAM does not hold that part.
    let strix = amd(96 * GIB, 6 * GIB, 16 * GIB, &[("gpu_metrics", b"\x60\x00\x02\x04")]).plain();
    let room = room(&strix, Taken::default(), 0.0);
    assert_eq!((room.device_bytes(), room.host, room.unified), (90 * GIB, 24 * GIB, false));
}

#[test]
fn apple_gives_its_gpu_a_part_of_ram() {
    let ram = |gib: u64, free: u64| Memory { total: gib * GIB, free: free * GIB, source: "the system".into() };
    let cases = [(36, None, 24), (64, None, 48), (64, Some(0), 48), (64, Some(57344), 56), (16, Some(999_999), 16)];
    for (total, limit, want) in cases {
        let gpu = unified::apple(&ram(total, 1), limit);
        let GpuMemory::Unified { part: Some(part), .. } = gpu.memory else { panic!("{gpu:?}") };
        assert_eq!((part.total, part.free), (want * GIB, GIB), "{total} {limit:?}");
    }
    let mut hardware = Hardware { ram: Some(ram(64, 60)), ..Hardware::default() };
    hardware.gpus.push(unified::apple(&ram(64, 60), None));
    let room = room(&hardware, Taken::default(), 0.0);
    assert_eq!((room.device_bytes(), room.host, room.total()), (48 * GIB, 12 * GIB, 60 * GIB));
}

#[test]
fn this_machine_can_be_read() {
    let place = Place::default();
    let hardware = read(&place, &ask(&place, None));
    let ram = hardware.ram.clone().expect("RAM");
    assert!(ram.free > 0 && ram.free <= ram.total, "{ram:?}");
    assert!(room(&hardware, Taken::default(), 0.08).total() > 0);
}

#[test]
fn sizes_are_for_people() {
    let cases = [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1_073_741_823, "1.0 GiB"), (1 << 40, "1.0 TiB")];
    for (bytes, want) in cases {
        assert_eq!(size(bytes), want, "{bytes}");
    }
    assert_eq!(Room::given(GIB).because, ["1.0 GiB were given"]);
}

fn device(name: &str, bus: Option<&str>, integrated: bool, (total, free): (u64, u64)) -> Device {
    let backend = name.trim_end_matches(|c: char| c.is_ascii_digit()).to_owned();
    let (bus, description) = (bus.map(str::to_owned), "a GPU".to_owned());
    Device { name: name.to_owned(), description, backend, bus, integrated, free, total }
}

#[test]
fn a_gpu_that_drivers_told_of_is_the_one_that_the_engine_computes_on() {
    let machine = Machine::new(&[MEMINFO]);
    let nvml = Nvml::Devices(vec![card(24 * GIB, 20 * GIB)]);
    let cuda = device("CUDA0", Some("0000:01:00.0"), false, (23 * GIB, 19 * GIB));
    // Its memory is as the driver says, whatever its backends say.
    let vulkan = device("Vulkan0", Some("0000:01:00.0"), false, (24 * GIB, 24 * GIB));
    let hardware = machine.read_with(&nvml, Ok(vec![cuda.clone(), vulkan]));
    assert_eq!(hardware.gpus.len(), 1);
    assert_eq!((own(&hardware).free, hardware.gpus[0].engine), (20 * GIB, true));
    // One without an address is not taken for another GPU.
    let unnamed = device("Vulkan0", None, false, (24 * GIB, 24 * GIB));
    assert_eq!(machine.read_with(&nvml, Ok(vec![unnamed])).gpus.len(), 1);

    // Another GPU is another, and the only one that the engine computes on.
    let second = device("Vulkan0", Some("0000:05:00.0"), false, (8 * GIB, 7 * GIB));
    let hardware = machine.read_with(&nvml, Ok(vec![second]));
    let engine: Vec<bool> = hardware.gpus.iter().map(|gpu| gpu.engine).collect();
    assert_eq!(engine, [false, true]);
    let ours = hardware.of_engine();
    let room = room(&ours, Taken::default(), 0.0);
    assert_eq!((room.device_bytes(), room.host), (7 * GIB, 24 * GIB));
    assert_eq!(own(&ours).source, "llama.cpp's Vulkan0");

    // One that no driver tells the memory of, llama.cpp does.
    let silent = NvmlDevice { memory: NvmlMemory::Error("GPU is lost".into()), ..card(0, 0) };
    let hardware = machine.read_with(&Nvml::Devices(vec![silent]), Ok(vec![cuda]));
    assert_eq!((hardware.gpus.len(), own(&hardware).free), (1, 19 * GIB));

    let failed = machine.read_with(&absent(), Err("llama.cpp gave up on the GPUs".into()));
    assert!(failed.gpus.is_empty() && failed.notes[0].contains("is not known: llama.cpp gave up"), "{failed:?}");
    let mute = machine.read_with(&absent(), Ok(vec![device("Vulkan0", None, false, (0, 0))]));
    assert!(matches!(&mute.gpus[0].memory, GpuMemory::Unknown(why) if why.contains("Vulkan0")), "{mute:?}");
}

#[test]
fn what_is_integrated_is_one_budget_with_ram_by_llama_cpp_too() {
    let machine = Machine::new(&[MEMINFO]);
    let hardware = machine.read_with(&absent(), Ok(vec![device("Vulkan0", None, true, (16 * GIB, 16 * GIB))]));
    let room = room(&hardware, Taken::default(), 0.0);
    assert!(room.unified);
    assert_eq!((room.device_bytes(), room.total()), (16 * GIB, 24 * GIB));

    // Metal says what it may take, and how much of that is free for itself alone.
    let mut mac = machine.plain();
    mac.gpus.push(unified::apple(mac.ram.as_ref().unwrap(), None));
    backends::add(&Ok(vec![device("MTL0", None, false, (23 * GIB, 23 * GIB))]), &mut mac);
    let [Gpu { memory: GpuMemory::Unified { part: Some(part), .. }, engine: true, .. }] = &mac.gpus[..] else {
        panic!("{mac:?}");
    };
    assert_eq!((part.total, part.free, part.source.as_str()), (23 * GIB, 23 * GIB, "llama.cpp's MTL0"));
}

#[test]
fn addresses_are_written_alike() {
    let mut far = card(GIB, GIB);
    far.bus = Some("00010000:01:00.0".into());
    let hardware = Machine::new(&[MEMINFO]).read(&Nvml::Devices(vec![card(GIB, GIB), far]));
    let buses: Vec<Option<&str>> = hardware.gpus.iter().map(|gpu| gpu.bus.as_deref()).collect();
    assert_eq!(buses, [Some("0000:01:00.0"), Some("00010000:01:00.0")]);
}
