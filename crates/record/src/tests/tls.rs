//! The way to a real PostgreSQL through TLS: who proves the right name is let in, and nothing ever goes in the clear where TLS was asked
//! for. Certificates are made with `openssl`, which Debian's PostgreSQL needs, too.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::postgres::{PASSWORD, Server};
use super::*;

/// A folder of certificates.
struct Certificates(tempfile::TempDir);

impl Certificates {
    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn openssl(&self, words: &[&str]) {
        let done = Command::new("openssl").current_dir(self.0.path()).args(words).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
    }

    /// A certificate that vouches for itself, in `NAME.crt`, with its key in `NAME.key`.
    fn own(&self, name: &str, subject: &str, more: &[&str]) {
        let (key, certificate) = (format!("{name}.key"), format!("{name}.crt"));
        let words =
            ["req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "30", "-keyout", &key, "-out", &certificate];
        self.openssl(&[&words[..], &["-subj", subject], more].concat());
    }

    /// A certificate for these names, signed by the authority `by`.
    fn signed(&self, name: &str, by: &str, names: &str) {
        fs::write(self.path("names"), format!("subjectAltName = {names}\n")).unwrap();
        let file = |ending: &str| format!("{name}.{ending}");
        let (key, asked) = (file("key"), file("csr"));
        self.openssl(&["req", "-newkey", "rsa:2048", "-nodes", "-keyout", &key, "-out", &asked, "-subj", "/CN=server"]);
        let (authority, secret, made) = (format!("{by}.crt"), format!("{by}.key"), file("crt"));
        let words =
            ["x509", "-req", "-in", &asked, "-CA", &authority, "-CAkey", &secret, "-CAcreateserial", "-days", "30"];
        self.openssl(&[&words[..], &["-out", &made, "-extfile", "names"]].concat());
    }

    /// Has a server use one of them.
    fn use_for(&self, server: &Server, name: &str) {
        let file = |ending: &str| {
            let bytes = fs::read(self.path(&format!("{name}.{ending}"))).unwrap();
            server.file(&format!("{name}.{ending}"), &bytes).display().to_string()
        };
        server.set(&format!("-c ssl=on -c ssl_cert_file={} -c ssl_key_file={}", file("crt"), file("key")));
    }
}

/// Opens a record through a URL, writes to it and looks whether each connection goes through TLS; else why it was refused.
fn tried(server: &Server, options: &str) -> Result<bool, String> {
    let dir = tempfile::tempdir().unwrap();
    let shared = Shared::postgres(&format!("{}{options}", server.url()), "main")?;
    let store = Store::open_shared(dir.path(), &shared).map_err(|error| error.to_string())?;
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    runtime.block_on(store.record(batch("c", &["hello"], 0))).map_err(|error| error.to_string())?;
    let connections = "FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'windowsill'";
    let of = |what: &str| server.ask(&format!("SELECT count(*) {connections} {what}"));
    let (all, secure) = (of(""), of("AND ssl"));
    assert!(all != "0" && (secure == "0" || secure == all), "{secure} of {all}");
    Ok(secure == all)
}

fn root(file: &Path) -> String {
    format!("sslrootcert={}", file.display())
}

#[test]
fn a_server_must_prove_its_name_and_nothing_goes_in_the_clear() {
    let Some(server) = Server::start() else { return };
    let made = Certificates(tempfile::tempdir().unwrap());
    made.own("authority", "/CN=authority", &[]);
    made.own("stranger", "/CN=stranger", &[]);
    let (ours, strange) = (root(&made.path("authority.crt")), root(&made.path("stranger.crt")));
    // Without TLS on its side, it is not spoken to in the clear.
    for asked in ["?sslmode=require".to_owned(), format!("?{ours}"), format!("?sslmode=verify-full&{ours}")] {
        let refused = tried(&server, &asked).unwrap_err();
        assert!(refused.to_lowercase().contains("tls") && !refused.contains(PASSWORD), "{asked}: {refused}");
    }
    made.signed("server", "authority", "DNS:localhost,IP:127.0.0.1");
    made.use_for(&server, "server");
    assert_eq!(tried(&server, ""), Ok(false), "nothing was asked for, and it is this machine");
    assert_eq!(tried(&server, "?sslmode=disable"), Ok(false));
    for mode in ["sslmode=verify-full&", "sslmode=require&", ""] {
        assert_eq!(tried(&server, &format!("?{mode}{ours}")), Ok(true), "{mode}");
        let refused = tried(&server, &format!("?{mode}{strange}")).unwrap_err();
        assert!(refused.contains("certificate") && !refused.contains(PASSWORD), "{mode}: {refused}");
    }
    let refused = tried(&server, "?sslmode=require").unwrap_err();
    assert!(refused.contains("certificate"), "no browser knows its authority: {refused}");
    made.signed("elsewhere", "authority", "DNS:db.example.org");
    made.use_for(&server, "elsewhere");
    for mode in ["sslmode=verify-full&", "sslmode=require&", ""] {
        let refused = tried(&server, &format!("?{mode}{ours}")).unwrap_err();
        assert!(refused.contains("certificate") && !refused.contains(PASSWORD), "another name, {mode}: {refused}");
    }
}

#[test]
fn a_certificate_that_vouches_for_itself_is_taken_where_it_is_named() {
    let Some(server) = Server::start() else { return };
    let made = Certificates(tempfile::tempdir().unwrap());
    let names = ["-addext", "subjectAltName=IP:127.0.0.1", "-addext", "basicConstraints=critical,CA:FALSE"];
    made.own("server", "/CN=db", &names);
    made.use_for(&server, "server");
    assert_eq!(tried(&server, &format!("?sslmode=verify-full&{}", root(&made.path("server.crt")))), Ok(true));
    // As the manual of PostgreSQL makes one.
    made.own("manual", "/CN=127.0.0.1", &[]);
    made.use_for(&server, "manual");
    let done = tried(&server, &format!("?sslmode=verify-full&{}", root(&made.path("manual.crt"))));
    assert_eq!(done, Ok(true));
    // Another one of the same words is another one.
    made.own("other", "/CN=127.0.0.1", &[]);
    let refused = tried(&server, &format!("?sslmode=verify-full&{}", root(&made.path("other.crt")))).unwrap_err();
    assert!(refused.contains("certificate"), "{refused}");
}
