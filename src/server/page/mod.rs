//! The page at `/`: a few files, built into the program. They hold no data, so anybody who is let in at the door may have them; the
//! data that they show is asked for with the key. `preact.js`, `hooks.js` (both of Preact 10.29.8, MIT) and `htm.js` (htm 3.1.1,
//! Apache-2.0) are vendored as they are published, but for an import's path; `licenses.txt` has their licenses.

use http::{HeaderValue, Response, header};

use crate::proxy::relay::{Body, full};

/// Where its files are.
const FOLDER: &str = "/windowsill/page/";

/// Name, kind and text of each file.
const FILES: &[(&str, &str, &str)] = &[
    ("style.css", "text/css; charset=utf-8", include_str!("style.css")),
    ("icon.svg", "image/svg+xml", include_str!("icon.svg")),
    ("licenses.txt", "text/plain; charset=utf-8", include_str!("licenses.txt")),
    ("again.js", SCRIPT, include_str!("again.js")),
    ("api.js", SCRIPT, include_str!("api.js")),
    ("app.js", SCRIPT, include_str!("app.js")),
    ("chart.js", SCRIPT, include_str!("chart.js")),
    ("chat.js", SCRIPT, include_str!("chat.js")),
    ("conversation.js", SCRIPT, include_str!("conversation.js")),
    ("curate.js", SCRIPT, include_str!("curate.js")),
    ("format.js", SCRIPT, include_str!("format.js")),
    ("history.js", SCRIPT, include_str!("history.js")),
    ("house.js", SCRIPT, include_str!("house.js")),
    ("hooks.js", SCRIPT, include_str!("hooks.js")),
    ("htm.js", SCRIPT, include_str!("htm.js")),
    ("lib.js", SCRIPT, include_str!("lib.js")),
    ("markdown.js", SCRIPT, include_str!("markdown.js")),
    ("overview.js", SCRIPT, include_str!("overview.js")),
    ("preact.js", SCRIPT, include_str!("preact.js")),
    ("requests.js", SCRIPT, include_str!("requests.js")),
    ("search.js", SCRIPT, include_str!("search.js")),
    ("sides.js", SCRIPT, include_str!("sides.js")),
    ("steer.js", SCRIPT, include_str!("steer.js")),
    ("strip.js", SCRIPT, include_str!("strip.js")),
    ("use.js", SCRIPT, include_str!("use.js")),
];

const SCRIPT: &str = "text/javascript; charset=utf-8";

/// Scripts, styles and requests of its own alone; nothing inline, nothing framed, nothing sent elsewhere.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'";

/// The page, or one of its files; `None` where there is no such file.
pub(super) fn file(path: &str) -> Option<Response<Body>> {
    let (kind, text) = match path {
        "/" => ("text/html; charset=utf-8", include_str!("index.html")),
        _ => {
            let name = path.strip_prefix(FOLDER)?;
            let (_, kind, text) = FILES.iter().find(|(known, ..)| *known == name)?;
            (*kind, *text)
        }
    };
    let mut response = Response::new(full(text));
    let headers = response.headers_mut();
    let fixed = [
        (header::CONTENT_TYPE, kind),
        (header::CONTENT_SECURITY_POLICY, POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::REFERRER_POLICY, "no-referrer"),
        // Another version of the program has other files at the same address.
        (header::CACHE_CONTROL, "no-cache"),
    ];
    for (name, value) in fixed {
        headers.insert(name, HeaderValue::from_static(value));
    }
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_small_whole_and_asks_nobody_else() {
        let texts =
            FILES.iter().map(|(name, _, text)| (*name, *text)).chain([("index.html", include_str!("index.html"))]);
        let texts: Vec<(&str, &str)> = texts.collect();
        assert!(texts.iter().map(|(_, text)| text.len()).sum::<usize>() < 400 * 1024);
        for (name, text) in texts.iter().filter(|(name, _)| *name != "licenses.txt") {
            // The names of SVG, MathML and HTML are no addresses that a browser asks.
            let text = text.replace("http://www.w3.org/", "");
            // Preact sets HTML only where it is asked to with `dangerouslySetInnerHTML`, which no file of ours does.
            let vendored = *name == "preact.js";
            for outside in ["http://", "https://", "innerHTML", "dangerouslySetInnerHTML", "outerHTML"] {
                assert!(!text.contains(outside) || vendored && outside.ends_with("nnerHTML"), "{name} holds {outside}");
            }
            for outside in ["insertAdjacentHTML", "document.write", "eval(", "new Function"] {
                assert!(!text.contains(outside), "{name} holds {outside}");
            }
            for import in text.split("from \"./").skip(1) {
                let wanted = import.split('"').next().unwrap();
                assert!(FILES.iter().any(|(known, ..)| *known == wanted), "{name} imports {wanted}");
            }
        }
        let page = texts.last().unwrap().1;
        for link in page.split("\"/windowsill/page/").skip(1) {
            let path = format!("{FOLDER}{}", link.split('"').next().unwrap());
            assert!(file(&path).is_some(), "{path}");
        }
        assert!(file("/windowsill/page/nonesuch.js").is_none() && file("/windowsill/page/../mod.rs").is_none());
    }
}
