//! Where a model's file is on this machine: what the server says, else Ollama's own folders by the model's name. Opens no
//! model, and never follows a name out of those folders.

use std::path::{Component, Path, PathBuf};

use serde_json::Value;

/// A model's file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModelFile {
    /// Where it is.
    pub path: PathBuf,
    /// How that is known.
    pub source: String,
    /// Tells one state of the file from another: its length and when it was changed.
    pub identity: String,
}

/// The file at a path.
///
/// # Errors
/// Why it cannot be read, in words.
pub fn at(path: &Path, source: &str) -> Result<ModelFile, String> {
    let open = crate::files::open(path).and_then(|file| file.metadata());
    let meta = open.map_err(|e| format!("the model's file {} cannot be read: {e}", path.display()))?;
    let changed = meta.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    let identity = format!("{} {} {}", path.display(), meta.len(), changed.unwrap_or_default().as_nanos());
    Ok(ModelFile { path: path.to_owned(), source: source.to_owned(), identity })
}

/// The file of a model that a server serves: where the server says, else, for Ollama, where its manifest says.
///
/// `folders` are those where Ollama may keep its models, likeliest first.
///
/// # Errors
/// Why there is none, or why it cannot be read, in words.
pub fn of_served(told: Option<&str>, name: &str, folders: &[PathBuf]) -> Result<ModelFile, String> {
    let told_file = told.map(|path| at(Path::new(path), "the server says where it is"));
    match told_file {
        Some(Ok(file)) => Ok(file),
        // Inside a container the server sees other paths than this machine.
        other => match of_ollama(name, folders) {
            Some(found) => found,
            None => Err(match other {
                Some(Err(why)) => why,
                _ => "the server does not say where the model's file is".into(),
            }),
        },
    }
}

/// The file of an Ollama model by its name; `None` when no folder has such a model.
pub fn of_ollama(name: &str, folders: &[PathBuf]) -> Option<Result<ModelFile, String>> {
    let inside = manifest_path(name)?;
    folders.iter().find_map(|folder| {
        let manifest = std::fs::read(folder.join("manifests").join(&inside)).ok()?;
        let digest = weights(&serde_json::from_slice(&manifest).ok()?)?;
        let blob = folder.join("blobs").join(digest.replace(':', "-"));
        Some(at(&blob, "Ollama's manifest names it"))
    })
}

/// `<host>/<namespace>/<model>/<tag>` of a name; `None` for a name that is none of Ollama's.
fn manifest_path(name: &str) -> Option<PathBuf> {
    let name = name.trim();
    let name = name.split_once("://").map_or(name, |(_, rest)| rest);
    let (path, tag) = match name.rsplit_once(':') {
        Some((path, tag)) if !tag.contains('/') => (path, tag),
        _ => (name, "latest"),
    };
    let parts: Vec<&str> = path.split('/').collect();
    let (host, namespace, model) = match parts.as_slice() {
        [model] => ("registry.ollama.ai", "library", *model),
        [namespace, model] => ("registry.ollama.ai", *namespace, *model),
        [host, namespace, model] => (*host, *namespace, *model),
        _ => return None,
    };
    let all = [host, namespace, model, tag];
    let plain = |part: &&str| matches!(Path::new(part).components().collect::<Vec<_>>()[..], [Component::Normal(_)]);
    all.iter().all(plain).then(|| all.iter().collect())
}

/// The digest of the layer that holds the weights.
fn weights(manifest: &Value) -> Option<String> {
    let layer =
        manifest["layers"].as_array()?.iter().find(|l| l["mediaType"] == "application/vnd.ollama.image.model")?;
    let digest = layer["digest"].as_str()?;
    let hex = digest.strip_prefix("sha256:")?;
    (hex.len() == 64 && hex.bytes().all(|b| b.is_ascii_hexdigit())).then(|| digest.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEX: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

    fn folder(manifests: &[(&str, &str)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in manifests {
            let path = dir.path().join("manifests").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        std::fs::create_dir_all(dir.path().join("blobs")).unwrap();
        std::fs::write(dir.path().join(format!("blobs/sha256-{HEX}")), "GGUF").unwrap();
        dir
    }

    fn manifest(digest: &str) -> String {
        serde_json::json!({"schemaVersion": 2, "layers": [
            {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:1"},
            {"mediaType": "application/vnd.ollama.image.model", "digest": digest},
        ]})
        .to_string()
    }

    #[test]
    fn a_name_leads_to_its_blob() {
        let good = manifest(&format!("sha256:{HEX}"));
        let dir = folder(&[
            ("registry.ollama.ai/library/qwen3/8b", &good),
            ("registry.ollama.ai/me/mine/latest", &good),
            ("hf.co/org/repo/Q4_K_M", &good),
            ("registry.ollama.ai/library/evil/latest", &manifest("sha256:../../../etc/passwd")),
            ("registry.ollama.ai/library/broken/latest", "{"),
            ("registry.ollama.ai/library/gone/latest", &manifest(&format!("sha256:{}", HEX.replace('a', "b")))),
        ]);
        let folders = [PathBuf::from("/nonexistent"), dir.path().to_owned()];
        for name in
            ["qwen3:8b", "library/qwen3:8b", "registry.ollama.ai/library/qwen3:8b", "me/mine", "hf.co/org/repo:Q4_K_M"]
        {
            let file = of_ollama(name, &folders).expect(name).expect(name);
            assert!(file.path.ends_with(format!("blobs/sha256-{HEX}")), "{name}: {file:?}");
        }
        for name in ["qwen3", "", "../x", "a/../b", "a/b/c/d", "evil", "broken", "x:..", "qwen3:8b/.."] {
            assert_eq!(of_ollama(name, &folders), None, "{name}");
        }
        assert!(of_ollama("gone", &folders).expect("it is known").is_err());
    }

    #[test]
    fn what_the_server_says_comes_first() {
        let dir = folder(&[("registry.ollama.ai/library/m/latest", &manifest(&format!("sha256:{HEX}")))]);
        let folders = [dir.path().to_owned()];
        let told = dir.path().join("told.gguf");
        std::fs::write(&told, "GGUF").unwrap();
        assert_eq!(of_served(told.to_str(), "m", &folders).unwrap().path, told);
        // A container's path is not there.
        assert!(of_served(Some("/root/.ollama/x"), "m", &folders).unwrap().path.ends_with(format!("sha256-{HEX}")));
        let why = of_served(Some("/root/.ollama/x"), "n", &folders).unwrap_err();
        assert!(why.contains("/root/.ollama/x"), "{why}");
        assert!(of_served(None, "n", &folders).unwrap_err().contains("does not say"));
        assert!(at(dir.path(), "").unwrap_err().contains("directory"));
    }

    #[test]
    fn a_changed_file_has_another_identity() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("m.gguf");
        std::fs::write(&path, "GGUF").unwrap();
        let before = at(&path, "").unwrap();
        assert_eq!(before, at(&path, "").unwrap());
        std::fs::write(&path, "GGUF, longer").unwrap();
        assert_ne!(before.identity, at(&path, "").unwrap().identity);
    }
}
