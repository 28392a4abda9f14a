//! What an agent may have changed in its own conversation: pins, a task that is done; and a new conversation out of an old one.

use super::*;

const RULE: &str = "The gate stays green.";

/// A proxy that listens where its config says, so that `windowsill mcp` finds it.
fn found_by_its_config(dir: &Path, fake: &Fake) -> Served {
    let served = Served::start(dir, &[fake.url()], "");
    let config = std::fs::read_to_string(dir.join("config.toml")).unwrap();
    std::fs::write(dir.join("config.toml"), config.replace("127.0.0.1:0", &served.address.to_string())).unwrap();
    served
}

/// Calls of tools, over one of both ways.
trait Calls {
    fn called(&mut self, tool: &str, arguments: &Value) -> Value;

    /// The structured answer of a call that succeeds.
    fn structured(&mut self, tool: &str, arguments: &Value) -> Value {
        let answer = self.called(tool, arguments);
        let result = &answer["result"];
        assert_ne!(result["isError"], true, "{tool}: {answer}");
        let text: Value = serde_json::from_str(result["content"][0]["text"].as_str().unwrap()).unwrap();
        assert_eq!(text, result["structuredContent"], "{tool}: the text says the same");
        text
    }

    #[track_caller]
    fn refused(&mut self, tool: &str, arguments: &Value, says: &str) {
        let answer = self.called(tool, arguments);
        let text = answer["result"]["content"][0]["text"].as_str().unwrap_or_else(|| panic!("{answer}"));
        assert!(answer["result"]["isError"] == true && text.contains(says), "{tool} {arguments}: {text}");
    }
}

impl Calls for Client {
    fn called(&mut self, tool: &str, arguments: &Value) -> Value {
        self.ask("tools/call", &json!({"name": tool, "arguments": arguments}))
    }
}

/// Over HTTP, at a path.
struct Http(std::net::SocketAddr, &'static str);

impl Calls for Http {
    fn called(&mut self, tool: &str, arguments: &Value) -> Value {
        let message = message("tools/call", json!({"name": tool, "arguments": arguments}));
        let json = [("Content-Type", "application/json")];
        request(self.0, "POST", self.1, &json, message.to_string().as_bytes()).ok().json()
    }
}

fn conversation(address: std::net::SocketAddr, sent: &Chat) -> String {
    let answer = request(address, "POST", "/v1/chat/completions", &[], &sent.body()).ok();
    answer.header("x-windowsill-conversation").unwrap().to_owned()
}

#[test]
fn it_pins_builds_and_says_that_its_task_is_done_over_both() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let served = found_by_its_config(dir.path(), &fake);
    let get = |path: &str| request(served.address, "GET", path, &[], b"").ok().json();
    let ways: [Box<dyn Calls>; 2] = [Box::new(Client::start(dir.path(), &[])), Box::new(Http(served.address, "/mcp"))];
    for (seed, mut way) in (3..).zip(ways) {
        let sent = told(seed, NEEDLE);
        let id = conversation(served.address, &sent);
        let base = format!("/windowsill/conversations/{id}");

        // A price first, then the pin itself; the next prompt has it.
        let price = way.structured("pin", &json!({"conversation": id, "text": RULE, "dry_run": true}));
        assert!(price["after"].as_u64() > price["before"].as_u64(), "{price}");
        assert_eq!(get(&format!("{base}/pins"))["pins"], json!([]));
        let pinned = way.structured("pin", &json!({"conversation": id, "text": RULE}));
        assert_eq!(pinned["pin"], 1, "{pinned}");
        // It was an agent, and no person.
        assert_eq!(get(&format!("{base}/pins"))["pins"][0]["by"], "agent");
        let events = get(&format!("/windowsill/events?conversation={id}&kind=context_compaction&last=1"));
        assert_eq!(events["events"][0]["data"]["asked_by"], "agent", "{events}");
        assert_eq!(way.structured("pins", &json!({"conversation": id})), get(&format!("{base}/pins")));
        request(served.address, "POST", "/v1/chat/completions", &[], &sent.body()).ok();
        let forwarded: String = fake.last().messages().iter().map(text).collect();
        assert!(forwarded.contains(RULE), "{forwarded}");
        way.refused("pin", &json!({"conversation": id, "text": RULE}), "pinned already");
        way.structured("pin", &json!({"conversation": id, "message": 0, "when": "next_break"}));
        for number in [1, 2] {
            way.structured("unpin", &json!({"conversation": id, "pin": number}));
        }
        assert_eq!(get(&format!("{base}/pins"))["pins"], json!([]));

        let listed = way.structured("build", &json!({"conversation": id}));
        assert_eq!(listed, get(&format!("{base}/segments")));
        let built = way.structured("build", &json!({"conversation": id, "turns": [1]}));
        assert_eq!(built["messages"][0]["content"], sent.messages[1]["content"], "{built}");
        let step = way.structured("build", &json!({"conversation": id, "turns": ["1.0"]}));
        assert_eq!(step["messages"].as_array().unwrap().len(), 1, "{step}");

        let done = way.structured("done", &json!({"conversation": id, "note": "It opens at a quarter past nine."}));
        let record = done["record"].as_str().unwrap();
        let kept = way.called("recall", &json!({"id": record, "conversation": id}));
        assert!(kept["result"]["content"][0]["text"].as_str().unwrap().contains("a quarter past nine"), "{kept}");
        way.refused("done", &json!({"conversation": id}), "nothing was said since");
    }
}

#[test]
fn nothing_is_changed_in_what_an_agent_cannot_name_nor_by_what_makes_no_sense() {
    let fake = Fake::start(Kind::LlamaServer, 4096);
    let dir = tempfile::tempdir().unwrap();
    let served = found_by_its_config(dir.path(), &fake);
    let (own, other) = (conversation(served.address, &told(3, NEEDLE)), conversation(served.address, &told(4, "x")));
    let one: &'static str = format!("/mcp?conversation={own}").leak();
    let ways: [(Box<dyn Calls>, bool); 5] = [
        (Box::new(Client::start(dir.path(), &[])), false),
        (Box::new(Http(served.address, "/mcp")), false),
        (Box::new(Http(served.address, "/mcp?all")), false),
        (Box::new(Client::start(dir.path(), &["--conversation", &own])), true),
        (Box::new(Http(served.address, one)), true),
    ];
    for (mut way, only_one) in ways {
        for (tool, more) in [
            ("pin", json!({"text": RULE})),
            ("unpin", json!({"pin": 1})),
            ("done", json!({})),
            ("pins", json!({})),
            ("build", json!({"turns": [1]})),
        ] {
            let with = |id: &str| {
                let mut arguments = more.clone();
                arguments["conversation"] = json!(id);
                arguments
            };
            if only_one {
                way.refused(tool, &with(&other), "only one conversation is open");
            } else {
                way.refused(tool, &more, "give `conversation`");
                way.refused(tool, &with("nonesuch"), "no conversation");
            }
            way.refused(tool, &json!({"path": "/etc/passwd"}), "takes no `path`");
        }
        let mut refused = |tool: &str, mut arguments: Value, says: &str| {
            arguments["conversation"] = json!(own);
            way.refused(tool, &arguments, says);
        };
        refused("pin", json!({}), "a text or a message");
        refused("pin", json!({"text": RULE, "message": 1}), "a text or a message");
        refused("pin", json!({"message": -1}), "from 0 on");
        refused("pin", json!({"text": ["x"]}), "must be a text");
        refused("pin", json!({"text": " "}), "empty text");
        refused("pin", json!({"text": prose(9, 4_000)}), "a pin may have");
        refused("pin", json!({"text": RULE, "when": "soon"}), "next_break");
        refused("pin", json!({"text": RULE, "dry_run": "perhaps"}), "true or false");
        refused("unpin", json!({}), "give `pin`");
        refused("unpin", json!({"pin": 7}), "no pin 7");
        refused("build", json!({"turns": 1}), "must be a list");
        refused("build", json!({"turns": ["x"]}), "must be a list");
        refused("build", json!({"turns": [9]}), "no turn 9");
        refused("build", json!({"briefs": [3]}), "no brief 3");
        refused("done", json!({"note": prose(9, 5_000)}), "`note` has");
    }
    for id in [own, other] {
        let path = format!("/windowsill/conversations/{id}/pins");
        assert_eq!(request(served.address, "GET", &path, &[], b"").ok().json()["pins"], json!([]));
    }
    let checkpoints = request(served.address, "GET", "/windowsill/events?kind=checkpoint", &[], b"").ok().json();
    assert_eq!(checkpoints["events"], json!([]));

    // Without the proxy there is nobody who could change anything.
    let mut client = Client::start(dir.path(), &["--all-conversations"]);
    let (id, _) = (conversation(served.address, &told(3, NEEDLE)), served.kill());
    client.refused("pin", &json!({"conversation": id, "text": RULE}), "no windowsill answers");
    client.structured("build", &json!({"conversation": id}));
}
