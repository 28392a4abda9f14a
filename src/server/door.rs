//! Who may come in: by the name that a request calls this proxy, and by the web page that sends it. A page can make its own
//! name point at this machine, or send requests here from any site; programs that are no browser say nothing of pages.

use std::io::Read as _;
use std::net::{IpAddr, UdpSocket};
use std::path::Path;

use http::uri::Authority;
use http::{HeaderMap, HeaderName, HeaderValue, header};

use crate::config::Config;
use crate::proxy::Error;

const SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// Longest name that a message repeats (characters).
const SHOWN: usize = 100;

/// What containers call their host.
const OF_CONTAINERS: [&str; 2] = ["host.docker.internal", "host.containers.internal"];

/// Where a machine says itself who a name is.
const HOSTS: &str = if cfg!(windows) { r"C:\Windows\System32\drivers\etc\hosts" } else { "/etc/hosts" };

/// The longest such file that is read (bytes).
const HOSTS_SIZE: u64 = 1 << 20;

/// What is let in besides what always is.
pub(super) struct Door {
    hosts: Vec<String>,
    origins: Vec<String>,
    /// The names of [`OF_CONTAINERS`] that no page can make its own here.
    of_containers: Vec<&'static str>,
}

impl Door {
    pub(super) fn new(config: &Config) -> Door {
        // With a key, a page that makes a name its own gets nothing: it does not know the key. Without one, the name is good where
        // this machine itself says that it is its own: a browser here then asks no DNS, which may be anybody's.
        let file = if config.is_guarded() { String::new() } else { hosts_file(Path::new(HOSTS)) };
        let safe = |name: &&str| config.is_guarded() || is_of_this_machine(&file, name);
        let of_containers = OF_CONTAINERS.into_iter().filter(safe).collect();
        Door { hosts: config.allowed_hosts.clone(), origins: config.allowed_origins.clone(), of_containers }
    }

    /// Checks a request; returns the origin of the page that sent it, which may read the reply, where a page did.
    ///
    /// # Errors
    /// Status 400 or 403, with the setting that lets such a request in.
    pub(super) fn admit(&self, parts: &http::request::Parts) -> Result<Option<HeaderValue>, Error> {
        let headers = &parts.headers;
        let mut host = None;
        if let Some(named) = parts.uri.authority() {
            host = Some(self.host(named.as_str())?);
        }
        if let Some(named) = only(headers, &header::HOST)? {
            // Where a request names both, both must be right: a server may go by either.
            let named = self.host(named.to_str().unwrap_or("\u{fffd}"))?;
            host = host.or(Some(named));
        }
        // HTTP/1.0 had no such header yet. What it says of a page counts all the same.
        if host.is_none() && parts.version != http::Version::HTTP_10 {
            return Err(Error::client(400, "bad_host", "the request has no `Host` header", "send one"));
        }
        match only(headers, &header::ORIGIN)? {
            Some(origin) => self.origin(origin, host.as_ref()).map(Some),
            None => same_site(headers).map(|()| None),
        }
    }

    fn host(&self, named: &str) -> Result<Authority, Error> {
        let authority = named.parse::<Authority>().ok().filter(|a| !a.as_str().contains('@'));
        let name = authority.as_ref().map_or("", Authority::host).trim_end_matches('.').to_ascii_lowercase();
        let known = ip(&name).is_some()
            || is_local(&name)
            || self.of_containers.iter().any(|of_containers| *of_containers == name)
            || self.hosts.iter().any(|allowed| matches(allowed, &name));
        match authority {
            Some(authority) if known => Ok(authority),
            _ => {
                let hint = "call it by its IP address or `localhost`, or add the name to `allowed_hosts` in config.toml \
                    (WINDOWSILL_ALLOWED_HOSTS) and restart";
                let message = format!("requests to the host `{}` are not let in", short(named));
                Err(Error::client(403, "host_not_allowed", message, hint))
            }
        }
    }

    fn origin(&self, origin: &HeaderValue, host: Option<&Authority>) -> Result<HeaderValue, Error> {
        let text = origin.to_str().unwrap_or("\u{fffd}");
        if is_own(text, host) || self.allows(&text.to_ascii_lowercase()) {
            return Ok(origin.clone());
        }
        let message = format!("pages from `{}` are not let in", short(text));
        let hint = match text {
            "null" => "a sandboxed page or a file says no origin: serve it from an address, and add that to `allowed_origins`".to_owned(),
            _ => "add this origin to `allowed_origins` in config.toml (WINDOWSILL_ALLOWED_ORIGINS) and restart, if you trust it".to_owned(),
        };
        Err(Error::client(403, "origin_not_allowed", message, &hint))
    }

    fn allows(&self, origin: &str) -> bool {
        let Some((scheme, host)) = origin.split_once("://") else { return false };
        self.origins.iter().any(|allowed| match allowed.split_once("://") {
            None => allowed == "*",
            Some((wanted, pattern)) => wanted == scheme && (pattern == "*" || matches(pattern, host)),
        })
    }
}

/// Names of this machine that no page can make its own (RFC 6761).
fn is_local(name: &str) -> bool {
    name == "localhost" || name.ends_with(".localhost")
}

/// The text of the file; nothing where it cannot be read.
fn hosts_file(path: &Path) -> String {
    let mut text = Vec::new();
    let _ = std::fs::File::open(path).and_then(|file| file.take(HOSTS_SIZE).read_to_end(&mut text));
    String::from_utf8_lossy(&text).into_owned()
}

/// Whether a hosts file has a name, and each address that it has there is one of this machine's.
fn is_of_this_machine(hosts: &str, name: &str) -> bool {
    let mut addresses = hosts.lines().filter_map(|line| {
        let mut words = line.split('#').next().unwrap_or("").split_whitespace();
        let address = words.next()?;
        words.any(|word| word.eq_ignore_ascii_case(name)).then_some(address)
    });
    // Only an address of this machine can be bound.
    let here = |address: &str| address.parse::<IpAddr>().is_ok_and(|ip| UdpSocket::bind((ip, 0)).is_ok());
    addresses.next().is_some_and(here) && addresses.all(here)
}

/// Whether a page is this proxy's own, or served from this machine.
fn is_own(origin: &str, host: Option<&Authority>) -> bool {
    let usual = match origin.split_once("://") {
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("http") => 80,
        Some((scheme, _)) if scheme.eq_ignore_ascii_case("https") => 443,
        _ => return false,
    };
    let Some(page) = origin.split_once("://").and_then(|(_, rest)| rest.parse::<Authority>().ok()) else {
        return false;
    };
    let port = |a: &Authority| a.port_u16().unwrap_or(usual);
    let name = page.host().to_ascii_lowercase();
    let here = name == "localhost" || ip(&name).is_some_and(|ip| ip.to_canonical().is_loopback());
    here || host.is_some_and(|host| name == host.host().to_ascii_lowercase() && port(&page) == port(host))
}

/// Browsers say so of requests that another site's page makes, also where they send no `Origin`.
fn same_site(headers: &HeaderMap) -> Result<(), Error> {
    let site = only(headers, &SITE)?.map(|v| v.as_bytes().to_ascii_lowercase());
    match site.as_deref() {
        None | Some(b"none" | b"same-origin") => Ok(()),
        Some(_) => Err(Error::client(
            403,
            "cross_site",
            "a page of another site made this request, and its browser does not say which",
            "type the address instead of following a link; scripts of pages in `allowed_origins` may fetch it",
        )),
    }
}

/// The header of a name that may come only once.
fn only<'a>(headers: &'a HeaderMap, name: &HeaderName) -> Result<Option<&'a HeaderValue>, Error> {
    let mut all = headers.get_all(name).iter();
    let first = all.next();
    match all.next() {
        None => Ok(first),
        Some(_) => Err(Error::client(400, "repeated_header", format!("`{name}` stands in the request twice"), "")),
    }
}

fn matches(pattern: &str, name: &str) -> bool {
    match pattern.strip_prefix("*.") {
        Some(parent) => name.strip_suffix(parent).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.')),
        None => pattern == "*" || pattern == name,
    }
}

fn ip(name: &str) -> Option<IpAddr> {
    name.strip_prefix('[').and_then(|n| n.strip_suffix(']')).unwrap_or(name).parse().ok()
}

fn short(text: &str) -> String {
    text.chars().take(SHOWN).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn door() -> Door {
        let words = |list: &[&str]| list.iter().map(|w| (*w).to_owned()).collect();
        Door {
            hosts: words(&["proxy.lan", "*.example.org"]),
            origins: words(&[
                "https://chat.example.org",
                "vscode-webview://*",
                "app://obsidian.md",
                "https://*.trusted.net",
            ]),
            of_containers: vec!["host.containers.internal"],
        }
    }

    fn admit(uri: &str, headers: &[(&str, &str)]) -> Result<Option<String>, (u16, Option<&'static str>)> {
        let mut request = http::Request::builder().uri(uri);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let parts = request.body(()).unwrap().into_parts().0;
        match door().admit(&parts) {
            Ok(origin) => Ok(origin.map(|o| o.to_str().unwrap().to_owned())),
            Err(Error::Client { status, code, .. }) => Err((status, code)),
            Err(other) => panic!("{other}"),
        }
    }

    #[test]
    fn hosts() {
        for host in [
            "127.0.0.1:8484",
            "localhost",
            "LOCALHOST:1",
            "localhost.",
            "[::1]:8484",
            "10.1.2.3",
            "host.containers.internal:8484",
            "proxy.lan:80",
            "Proxy.LAN",
            "a.example.org",
            "a.b.example.org",
        ] {
            assert_eq!(admit("/", &[("host", host)]), Ok(None), "{host}");
        }
        for host in [
            "evil.test",
            "localhost.evil.test",
            "evil.test:8484",
            "example.org",
            "evilexample.org",
            ".example.org",
            "127.0.0.1.evil.test",
            "2130706433",
            "user@127.0.0.1",
            "",
            "a b",
            "proxy.lan.evil.test",
            "host.docker.internal:8484",
        ] {
            assert_eq!(admit("/", &[("host", host)]), Err((403, Some("host_not_allowed"))), "{host}");
        }
        assert_eq!(admit("/", &[]), Err((400, Some("bad_host"))));
        assert_eq!(admit("/", &[("host", "a"), ("host", "127.0.0.1")]), Err((400, Some("repeated_header"))));
        // A request in absolute form names its host twice.
        assert_eq!(admit("http://evil.test/", &[("host", "127.0.0.1")]), Err((403, Some("host_not_allowed"))));
        assert_eq!(admit("http://127.0.0.1/", &[("host", "evil.test")]), Err((403, Some("host_not_allowed"))));
    }

    #[test]
    fn origins() {
        let on = |host, origin| admit("/", &[("host", host), ("origin", origin), ("sec-fetch-site", "cross-site")]);
        for origin in [
            "http://localhost:3000",
            "http://127.0.0.1",
            "https://[::1]:9",
            "http://10.1.2.3:8484",
            "https://chat.example.org",
            "HTTPS://chat.example.org",
            "vscode-webview://1b2c3d",
            "app://obsidian.md",
            "https://a.trusted.net",
        ] {
            assert_eq!(on("10.1.2.3:8484", origin), Ok(Some(origin.to_owned())), "{origin}");
        }
        assert!(on("proxy.lan", "https://proxy.lan").is_ok(), "behind a proxy that speaks TLS");
        for origin in [
            "null",
            "https://evil.test",
            "http://10.1.2.3:8485",
            "http://10.1.2.3",
            "http://localhost.evil.test",
            "http://chat.example.org",
            "https://chat.example.org:8443",
            "app://evil",
            "https://trusted.net",
            "https://eviltrusted.net",
            "vscode-webview:x",
            "",
            "file://",
            "https://localhost@evil.test",
        ] {
            assert_eq!(on("10.1.2.3:8484", origin), Err((403, Some("origin_not_allowed"))), "{origin}");
        }
    }

    #[test]
    fn what_containers_call_their_host_is_let_in_where_no_page_can_make_it_its_own() {
        for (file, expect) in [
            ("127.0.0.1 localhost\n127.0.0.1\tkubernetes.docker.internal Host.Docker.Internal # ours", true),
            ("::1 host.docker.internal\n127.0.0.1 host.docker.internal", UdpSocket::bind(("::1", 0)).is_ok()),
            ("127.0.0.1 host.docker.internal\n192.0.2.7 host.docker.internal", false),
            ("192.0.2.7 host.docker.internal", false),
            ("# 127.0.0.1 host.docker.internal", false),
            ("127.0.0.1 host.docker.internal.evil.test", false),
            ("nonsense host.docker.internal", false),
            ("", false),
        ] {
            assert_eq!(is_of_this_machine(file, "host.docker.internal"), expect, "{file}");
        }
        assert_eq!(hosts_file(Path::new("/nonesuch/hosts")), "");
    }

    #[test]
    fn a_request_without_a_host_says_what_page_it_is_of() {
        let admit = |headers: &[(&str, &str)]| {
            let mut request = http::Request::builder().uri("/").version(http::Version::HTTP_10);
            for (name, value) in headers {
                request = request.header(*name, *value);
            }
            door().admit(&request.body(()).unwrap().into_parts().0).map_err(|e| match e {
                Error::Client { status, code, .. } => (status, code),
                other => panic!("{other}"),
            })
        };
        assert_eq!(admit(&[]), Ok(None));
        assert!(admit(&[("origin", "http://localhost:3000")]).is_ok_and(|origin| origin.is_some()));
        for origin in ["https://evil.test", "null", "http://10.1.2.3"] {
            assert_eq!(admit(&[("origin", origin)]), Err((403, Some("origin_not_allowed"))), "{origin}");
        }
        assert_eq!(admit(&[("sec-fetch-site", "cross-site")]), Err((403, Some("cross_site"))));
    }

    #[test]
    fn requests_of_other_sites_without_an_origin() {
        let from = |site| admit("/", &[("host", "localhost"), ("sec-fetch-site", site)]);
        assert!(from("none").is_ok() && from("same-origin").is_ok());
        for site in ["cross-site", "same-site", "odd"] {
            assert_eq!(from(site), Err((403, Some("cross_site"))));
        }
    }
}
