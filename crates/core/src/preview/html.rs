//! HTML and XML as readable text: tags go, blocks become lines, scripts and styles go altogether.

use std::borrow::Cow;

use memchr::{memchr, memmem};

/// Elements whose content is not text.
const SILENT: &[&str] = &["script", "style", "noscript", "svg", "template", "head"];

/// Elements that stand on a line of their own.
const BLOCKS: &[&str] = &[
    "p",
    "div",
    "br",
    "li",
    "tr",
    "h1",
    "h2",
    "h3",
    "h4",
    "h5",
    "h6",
    "table",
    "ul",
    "ol",
    "section",
    "article",
    "header",
    "footer",
    "main",
    "nav",
    "pre",
    "blockquote",
    "dt",
    "dd",
    "form",
    "option",
    "hr",
    "title",
    "dict",
    "array",
];

/// The readable text of a page.
pub(super) fn readable(html: &str) -> String {
    let mut out = String::with_capacity(html.len() / 4);
    if let Some(title) = title(html) {
        out.push_str(&format!("# {title}\n"));
    }
    let mut rest = html;
    while let Some(open) = memchr(b'<', rest.as_bytes()) {
        text(&rest[..open], &mut out);
        rest = &rest[open..];
        if let Some(after) = rest.strip_prefix("<!--") {
            rest = memmem::find(after.as_bytes(), b"-->").map_or("", |end| &after[end + 3..]);
            continue;
        }
        if let Some(after) = rest.strip_prefix("<![CDATA[") {
            let end = memmem::find(after.as_bytes(), b"]]>").unwrap_or(after.len());
            text(&after[..end], &mut out);
            rest = after.get(end + 3..).unwrap_or("");
            continue;
        }
        let Some(close) = memchr(b'>', rest.as_bytes()) else { break };
        let tag = &rest[1..close];
        rest = &rest[close + 1..];
        let ending = tag.starts_with('/');
        let name: String = tag
            .trim_start_matches('/')
            .chars()
            .take_while(char::is_ascii_alphanumeric)
            .take(12)
            .collect::<String>()
            .to_ascii_lowercase();
        if SILENT.contains(&name.as_str()) && !ending && !tag.ends_with('/') {
            rest = after_end(rest, &name);
        } else if BLOCKS.contains(&name.as_str()) {
            block(&name, ending, &mut out);
        } else if matches!(name.as_str(), "td" | "th") && !ending {
            if !out.ends_with('\n') && !out.is_empty() {
                out.truncate(out.trim_end().len());
                out.push_str(" | ");
            }
        } else if !out.ends_with([' ', '\n']) {
            out.push(' ');
        }
    }
    text(rest, &mut out);
    out
}

fn block(name: &str, ending: bool, out: &mut String) {
    while out.ends_with(' ') {
        out.pop();
    }
    if !out.is_empty() && !out.ends_with('\n') {
        out.push('\n');
    }
    if ending {
        return;
    }
    match name.as_bytes() {
        [b'h', level @ b'1'..=b'6'] => {
            out.push_str(&"#".repeat(usize::from(level - b'0')));
            out.push(' ');
        }
        b"li" => out.push_str("- "),
        _ => {}
    }
}

/// What follows the end of a silent element.
fn after_end<'h>(rest: &'h str, name: &str) -> &'h str {
    let mut from = 0;
    while let Some(at) = memmem::find(&rest.as_bytes()[from..], b"</").map(|i| i + from) {
        let found = rest.as_bytes().get(at + 2..at + 2 + name.len());
        if found.is_some_and(|n| n.eq_ignore_ascii_case(name.as_bytes())) {
            return memchr(b'>', &rest.as_bytes()[at..]).map_or("", |end| &rest[at + end + 1..]);
        }
        from = at + 2;
    }
    ""
}

fn title(html: &str) -> Option<String> {
    let start = memmem::find(html.as_bytes(), b"<title").or_else(|| memmem::find(html.as_bytes(), b"<TITLE"))?;
    let from = start + memchr(b'>', &html.as_bytes()[start..])? + 1;
    let to = from + memchr(b'<', &html.as_bytes()[from..])?;
    let title = html_escape::decode_html_entities(&html[from..to]);
    let title = title.trim();
    (!title.is_empty()).then(|| title.to_owned())
}

/// Appends text with white space made single and entities decoded.
fn text(raw: &str, out: &mut String) {
    let decoded: Cow<'_, str> =
        if memchr(b'&', raw.as_bytes()).is_some() { html_escape::decode_html_entities(raw) } else { raw.into() };
    let mut words = decoded.split_whitespace();
    let Some(first) = words.next() else {
        if !raw.is_empty() && !out.is_empty() && !out.ends_with([' ', '\n']) {
            out.push(' ');
        }
        return;
    };
    if raw.starts_with(char::is_whitespace) && !out.is_empty() && !out.ends_with([' ', '\n']) {
        out.push(' ');
    }
    out.push_str(first);
    for word in words {
        out.push(' ');
        out.push_str(word);
    }
    if raw.ends_with(char::is_whitespace) {
        out.push(' ');
    }
}

/// Whether a text is HTML or XML rather than text that speaks of tags.
pub(super) fn looks(text: &str) -> bool {
    let head = text.trim_start();
    let head = &head[..super::clean::floor(head, 4096)];
    let lower = head[..super::clean::floor(head, 64)].to_ascii_lowercase();
    if lower.starts_with("<!doctype html") || lower.starts_with("<html") || lower.starts_with("<?xml") {
        return true;
    }
    let tags = memchr::memchr_iter(b'<', head.as_bytes())
        .filter(|&i| head.as_bytes().get(i + 1).is_some_and(|c| c.is_ascii_lowercase() || *c == b'/'))
        .count();
    head.starts_with('<') && tags * 60 > head.len().max(600)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_like_text() {
        let html = "<html><head><title>A &amp; B</title><style>p{}</style></head><body><script>if (a<b) {}</script>\
                    <h2>Top</h2><p>One <b>two</b>\n three &lt;x&gt;</p><ul><li>i</li><li>j</li></ul>\
                    <table><tr><td>1</td><td>2</td></tr></table><!-- gone --></body></html>";
        assert_eq!(readable(html).trim(), "# A & B\n## Top\nOne two three <x>\n- i\n- j\n1 | 2");
    }

    #[test]
    fn broken_pages_end() {
        for html in ["<", "<a", "<script>", "<!--", "<![CDATA[x", "a<b>c</", "&#xFFFFFFFF; &#0; &bogus; <p"] {
            let _ = readable(html);
        }
    }
}
