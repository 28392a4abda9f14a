//! The text of a service, for systemd and for launchd.

/// Its name for launchd.
pub(super) const NAME: &str = "org.windowsill.windowsill";

/// What tells a file of ours.
pub(super) const MARK: &str = "Written by `windowsill service install`";

/// A unit for systemd's user manager. What it forbids needs no privileges: a user manager cannot give a service a file system
/// of its own everywhere. It has started when windowsill listens, which is after a model was loaded.
pub(super) fn unit(words: &[String]) -> Result<String, &'static str> {
    let line: Vec<String> = words.iter().map(|word| quoted(word)).collect::<Result<_, _>>()?;
    Ok(format!(
        "# {MARK}; `windowsill service uninstall` removes it.
[Unit]
Description=windowsill, a proxy that keeps long chats within a model's context window
Documentation=man:windowsill(1)

[Service]
Type=notify
ExecStart={}
TimeoutStartSec=15min
Restart=on-failure
RestartSec=2
UMask=0077
NoNewPrivileges=yes
LockPersonality=yes
RestrictRealtime=yes
RestrictSUIDSGID=yes
RestrictNamespaces=yes
RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6 AF_NETLINK
SystemCallArchitectures=native

[Install]
WantedBy=default.target
",
        line.join(" ")
    ))
}

/// A word of a command line as systemd reads it: quoted, and without specifiers and variables.
fn quoted(word: &str) -> Result<String, &'static str> {
    if word.chars().any(char::is_control) {
        return Err("a path or flag holds a control character");
    }
    let word = word.replace('\\', "\\\\").replace('"', "\\\"").replace('%', "%%").replace('$', "$$");
    Ok(format!("\"{word}\""))
}

/// A launch agent for macOS.
pub(super) fn agent(words: &[String]) -> Result<String, &'static str> {
    if words.iter().any(|word| word.chars().any(char::is_control)) {
        return Err("a path or flag holds a control character");
    }
    let words: String = words
        .iter()
        .map(|word| {
            format!("\t\t<string>{}</string>\n", word.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;"))
        })
        .collect();
    Ok(format!(
        "<?xml version=\"1.0\" encoding=\"UTF-8\"?>
<!-- {MARK}; `windowsill service uninstall` removes it. -->
<!DOCTYPE plist PUBLIC \"-//Apple//DTD PLIST 1.0//EN\" \"http://www.apple.com/DTDs/PropertyList-1.0.dtd\">
<plist version=\"1.0\">
<dict>
\t<key>Label</key>
\t<string>{NAME}</string>
\t<key>ProgramArguments</key>
\t<array>
{words}\t</array>
\t<key>RunAtLoad</key>
\t<true/>
\t<key>KeepAlive</key>
\t<dict>
\t\t<key>SuccessfulExit</key>
\t\t<false/>
\t</dict>
\t<key>ProcessType</key>
\t<string>Interactive</string>
\t<key>Umask</key>
\t<integer>63</integer>
</dict>
</plist>
"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[&str]) -> Vec<String> {
        text.iter().map(|word| (*word).to_owned()).collect()
    }

    #[test]
    fn a_unit_says_its_words_as_they_are() {
        let text = unit(&words(&["/a b/windowsill", "serve", "--config", "/x/50%$HOME\"\\"])).unwrap();
        assert!(
            text.contains("ExecStart=\"/a b/windowsill\" \"serve\" \"--config\" \"/x/50%%$$HOME\\\"\\\\\"\n"),
            "{text}"
        );
        assert!(text.contains("NoNewPrivileges=yes") && text.contains(MARK), "{text}");
        assert!(unit(&words(&["/a\nExecStartPre=/bin/evil"])).is_err());
    }

    #[test]
    fn an_agent_is_xml_whatever_the_words_are() {
        let text = agent(&words(&["/a&b/<windowsill>", "serve"])).unwrap();
        assert!(text.contains("<string>/a&amp;b/&lt;windowsill&gt;</string>\n\t\t<string>serve</string>"), "{text}");
        assert!(agent(&words(&["a\0"])).is_err());
    }
}
