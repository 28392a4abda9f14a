//! The crates can be published at any time: each package has its licenses, its front page and every file that it is compiled from.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;

const CRATES: [(&str, &str); 3] =
    [("windowsill-core", "crates/core"), ("windowsill-record", "crates/record"), ("windowsill", "")];

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR"))
}

/// `cargo package …` without a network, in a folder of its own; what it printed, and what it warned of.
fn package(target: &Path, arguments: &[&str]) -> (String, String) {
    let mut command = Command::new(env!("CARGO"));
    command.args(["package", "--locked", "--offline", "--allow-dirty", "--target-dir"]).arg(target).args(arguments);
    let done = command.current_dir(root()).output().unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert!(done.status.success(), "{said}");
    (String::from_utf8(done.stdout).unwrap(), said)
}

/// All Rust files below a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let (folders, files): (Vec<_>, Vec<_>) = entries.partition(|path| path.is_dir());
    let files = files.into_iter().filter(|path| path.extension().is_some_and(|e| e == "rs"));
    files.chain(folders.iter().flat_map(|folder| sources(folder))).collect()
}

/// The files that a source has built in, as paths from the root of its crate.
fn built_in(source: &Path, from: &Path) -> Vec<String> {
    let text = std::fs::read_to_string(source).unwrap();
    let named = ["include_str!(\"", "include_bytes!(\""];
    let names = named.iter().flat_map(|start| text.split(start).skip(1)).filter_map(|rest| rest.split('"').next());
    let paths = names.map(|name| source.parent().unwrap().join(name).canonicalize().unwrap());
    paths.map(|path| path.strip_prefix(from.canonicalize().unwrap()).unwrap().to_str().unwrap().to_owned()).collect()
}

#[test]
fn packages_have_every_file_that_they_need() {
    let target = tempfile::tempdir().unwrap();
    let mut looked_at = 0;
    for (name, folder) in CRATES {
        let (list, _) = package(target.path(), &["--list", "-p", name]);
        let list: BTreeSet<&str> = list.lines().collect();
        for file in ["Cargo.toml", "Cargo.lock", "README.md", "LICENSE-MIT", "LICENSE-APACHE", "src/lib.rs"] {
            assert!(list.contains(file), "{name} lacks {file}: add it to `include` in its Cargo.toml");
        }
        let from = root().join(folder);
        for source in sources(&from.join("src")) {
            // What only tests read stays in the repository.
            let needed = built_in(&source, &from).into_iter().filter(|file| !file.starts_with("tests/"));
            for file in needed {
                assert!(list.contains(file.as_str()), "{name} lacks {file}, which {} has built in", source.display());
                looked_at += 1;
            }
        }
    }
    assert!(looked_at > 30, "{looked_at}");
}

#[test]
fn the_core_can_be_packed() {
    let target = tempfile::tempdir().unwrap();
    let (_, said) = package(target.path(), &["--no-verify", "-p", "windowsill-core"]);
    let warnings: Vec<&str> = said.lines().filter(|line| line.starts_with("warning")).collect();
    // There is no address to name yet.
    assert!(warnings.iter().all(|line| line.contains("no documentation, homepage or repository")), "{warnings:?}");
    let packed = std::fs::read_dir(target.path().join("package")).unwrap();
    let sizes: Vec<u64> = packed
        .map(|entry| entry.unwrap())
        .filter(|entry| entry.path().extension().is_some_and(|e| e == "crate"))
        .map(|entry| entry.metadata().unwrap().len())
        .collect();
    assert!(matches!(sizes[..], [size] if size < 1 << 20), "{sizes:?}");
}

#[test]
fn every_crate_says_what_it_is() {
    for (name, folder) in CRATES {
        let manifest = std::fs::read_to_string(root().join(folder).join("Cargo.toml")).unwrap();
        let manifest: toml::Table = manifest.parse().unwrap();
        let package = manifest["package"].as_table().unwrap();
        for key in ["description", "license", "readme", "keywords", "categories", "include"] {
            assert!(package.contains_key(key), "{name} has no `{key}`");
        }
        assert!(!package.contains_key("publish"), "{name} is kept from being published");
        assert!(package["keywords"].as_array().unwrap().len() <= 5, "{name}: at most five keywords are taken");
    }
}
