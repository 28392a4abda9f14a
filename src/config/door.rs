//! Readers of who may come in: `allowed_hosts` and `allowed_origins`.

use super::written::{self as read, Value};

/// Names that requests may call this proxy by: `proxy.lan`, `*.example.org`, or `*` for any.
pub(super) fn hosts(value: &Value) -> Result<Vec<String>, String> {
    let names = read::names(value)?;
    names.iter().map(|name| host(name.trim())).collect()
}

fn host(name: &str) -> Result<String, String> {
    let bare = name.strip_prefix("*.").unwrap_or(name);
    let good = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    if name == "*" || (!bare.is_empty() && bare.chars().all(good)) {
        return Ok(name.trim_end_matches('.').to_ascii_lowercase());
    }
    Err(format!(
        "must hold names of hosts, and `{name}` is none\nwrite \"proxy.lan\" or \"*.example.org\", without scheme, port and path"
    ))
}

/// Origins of pages that may use this proxy: `https://chat.example.org`, `vscode-webview://*`, or `*` for any.
pub(super) fn origins(value: &Value) -> Result<Vec<String>, String> {
    let origins = read::names(value)?;
    origins.iter().map(|origin| one_origin(origin.trim())).collect()
}

fn one_origin(origin: &str) -> Result<String, String> {
    if origin.eq_ignore_ascii_case("null") {
        return Err(
            "must not hold `null`, which every sandboxed page sends\nserve the page from an address, and allow that"
                .to_owned(),
        );
    }
    let trimmed = origin.trim_end_matches('/');
    // `file://` is an origin with an empty host.
    let whole = if trimmed.ends_with(':') { origin } else { trimmed };
    let scheme =
        |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '+' | '-' | '.'));
    let host = |h: &str| h.chars().all(|c| c.is_ascii_graphic() && !matches!(c, '/' | '?' | '#' | '@'));
    match whole.split_once("://") {
        Some((s, h)) if scheme(s) && host(h) => Ok(whole.to_ascii_lowercase()),
        _ if origin == "*" => Ok(origin.to_owned()),
        _ => Err(format!(
            "must hold origins, and `{origin}` is none\nwrite \"https://chat.example.org\" or \"vscode-webview://*\", without a path"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn written(text: &str) -> Value {
        Value::Names(vec![text.to_owned()])
    }

    #[test]
    fn hosts_are_names_alone() {
        for (text, want) in [("Proxy.LAN.", "proxy.lan"), ("*.example.org", "*.example.org"), ("*", "*")] {
            assert_eq!(hosts(&written(text)), Ok(vec![want.to_owned()]));
        }
        for text in ["http://proxy", "proxy:8484", "a/b", "", "*.", "a b", "u@h"] {
            assert!(hosts(&written(text)).is_err(), "{text}");
        }
    }

    #[test]
    fn origins_have_a_scheme_and_no_path() {
        for (text, want) in [
            ("https://Chat.example.org/", "https://chat.example.org"),
            ("http://10.0.0.2:3000", "http://10.0.0.2:3000"),
            ("vscode-webview://*", "vscode-webview://*"),
            ("app://obsidian.md", "app://obsidian.md"),
            ("file://", "file://"),
            ("*", "*"),
        ] {
            assert_eq!(origins(&written(text)), Ok(vec![want.to_owned()]), "{text}");
        }
        for text in ["null", "NULL", "chat.example.org", "https://a/b", "", "https://u@h", "://x"] {
            assert!(origins(&written(text)).is_err(), "{text}");
        }
        let many = Value::Word("app://a, https://b".to_owned());
        assert_eq!(origins(&many).unwrap(), ["app://a", "https://b"]);
    }
}
