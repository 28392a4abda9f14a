//! What templates use, what goes wrong, and that rewritten templates render what the given ones do.

use std::path::{Path, PathBuf};

use super::*;

fn render(source: &str, messages: Value) -> Result<String, TemplateError> {
    let options = Options { now: 1_700_000_000, ..Options::default() };
    Template::new(source)?.render(messages.as_array().unwrap(), None, &options)
}

/// The messages as they are.
fn raw(source: &str, messages: Value) -> Result<String, TemplateError> {
    let template = Template::new(source)?;
    let shaped = Shaped { messages: messages.as_array().cloned().unwrap(), ..Shaped::default() };
    template.run(&template.seen(&shaped, &Options { now: 1_700_000_000, ..Options::default() }), true)
}

#[test]
fn what_templates_use() {
    let value = json!([{"role": "user", "content": "é <b> 'q'", "x": {"b": [1, 2.5, true, null], "a": {}}}]);
    for (source, expect) in [
        ("{{ messages[0].x | tojson }}", r#"{"b": [1, 2.5, true, null], "a": {}}"#),
        ("{{ messages[0].content | tojson }}", r#""é <b> 'q'""#),
        ("{{ messages[0].content | tojson(ensure_ascii=True) }}", r#""\u00e9 <b> 'q'""#),
        (
            "{{ {'a': [1, {'b': 2}]} | tojson(indent=2) }}",
            "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ]\n}",
        ),
        ("{{ [1, 2] | tojson(separators=(',', ':')) }}", "[1,2]"),
        ("{{ true }} {{ none }} {{ ' a '.strip() }} {{ 'a-b'.split('-')[1] }}", "True  a b"),
        ("{{ none | string }} {{ missing | length }}{% set m = messages[0] %}{{ 'a' + m.missing }}", "None 0a"),
        (
            "{{ messages[0].x }}{{ [1, 'a', [2.50]] }} {{ '' ~ messages[0].x }}",
            "1a2.5 {'b': [1, 2.5, True, None], 'a': {}}",
        ),
        ("{{ [1.0, 0.1, 1e300, 123456789.5, -0.00001] | tojson }}", "[1, 0.1, 1e+300, 1.23457e+08, -1e-05]"),
        (
            "{% set ns = namespace(a=0) %}{% for i in range(5) %}{% if i == 3 %}{% break %}{% endif %}{% set ns.a = ns.a + i %}{% endfor %}{{ ns.a }}",
            "3",
        ),
        (
            "{% for k, v in messages[0].x.items() %}{{ k }}{{ v is mapping }} {% endfor %}{{ messages[::-1][0].role }}",
            "bFalse aTrue user",
        ),
        ("{% generation %}{{ messages[0].get('none', 7) }}{%- endgeneration %}", "7"),
        (
            "{% set q = namespace(ids=[]) %}{% for i in range(3) %}{% set _ = q.ids.append(i) %}{% endfor %}{% set first = q.ids.pop(0) %}{{ first }}{{ q.ids | tojson }}",
            "0[1, 2]",
        ),
        ("{{ strftime_now('%d %b %Y, %A %H:%M:%S') }}", "14 Nov 2023, Tuesday 22:13:20"),
        ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
        ("{% set e = [] %}{% for i in e[::-1] %}{{ i }}{% endfor %}{{ messages[::-1][0].role }}", "user"),
        ("{{ '[1, {\"a\": 2}]' | from_json | tojson }}", "[1, {\"a\": 2}]"),
    ] {
        assert_eq!(raw(source, value.clone()).as_deref(), Ok(expect), "{source}");
    }
}

#[test]
fn trouble_is_a_value() {
    let hi = json!([{"role": "user", "content": "hi"}]);
    let raised = TemplateError::Raised("roles must alternate".into());
    assert_eq!(render("{{ raise_exception('roles must alternate') }}", hi.clone()), Err(raised));
    let endless = "{% for a in range(9999) %}{% for b in range(9999) %}{{ a }}{% endfor %}{% endfor %}";
    assert_eq!(render(endless, hi.clone()), Err(TemplateError::Endless));
    let syntax = Template::new("{% if %}").unwrap_err();
    assert!(matches!(&syntax, TemplateError::Syntax(e) if e.contains("line 1")), "{syntax}");
    let wrong = render("{{ messages[0].content.no_such_method() }}", hi).unwrap_err();
    assert!(matches!(&wrong, TemplateError::Render(e) if e.contains("no_such_method")), "{wrong}");
}

#[test]
fn a_template_made_to_harm_does_none() {
    let refused = [
        format!("{{{{ {} }}}}", ["'a'"; 100_000].join(" + ")),
        format!("{{{{ {} }}}}", ["m"; 100_000].join(" ~ ")),
        format!("{{{{ {}m{} }}}}", "(".repeat(100_000), ")".repeat(100_000)),
        format!("{{{{ m{} }}}}", "|trim".repeat(100_000)),
        format!("{{{{ m{} }}}}", ".a".repeat(100_000)),
        format!("{}{}", "{% if m %}".repeat(50_000), "{% endif %}".repeat(50_000)),
        format!("{{% if m %}}{}{{% endif %}}", "{% elif n %}".repeat(50_000)),
        "x".repeat(2_000_000),
    ];
    for source in refused {
        let error = Template::new(&source).unwrap_err();
        assert!(
            matches!(&error, TemplateError::Syntax(why) if why.contains(" more than ") || why.contains("recursion")),
            "{error}"
        );
    }
    let most = [
        format!("{{{{ {} }}}}", ["'a'"; 500].join(" + ")),
        format!("{{{{ {} }}}}", ["bos_token"; 250].join(" ~ ")),
        format!("{{{{ bos_token{} }}}}", "|trim".repeat(249)),
        format!("{{{{ bos_token{} }}}}", ".a".repeat(249)),
        format!("{{%- set languages = {{ {} }} -%}}", ["'en': ['English', 1]"; 490].join(", ")),
        format!("{{% if m %}}{}{{% endif %}}", "{% elif n %}".repeat(400)),
        format!("{{%- macro f(x) -%}}{}{{%- endmacro -%}}{}", "long ".repeat(200), "{{ f(1) }}".repeat(2_000)),
    ];
    let hi = json!([{"role": "user", "content": "hi"}]);
    for source in most {
        assert!(render(&source, hi.clone()).is_ok());
    }
    let endless = render("{%- macro f(x) -%}{{ f([x]) }}{%- endmacro -%}{{ f(1) }}", hi).unwrap_err();
    assert!(endless.to_string().contains("recursion"), "{endless}");
}

#[test]
fn messages_get_the_shape_the_template_wants() {
    let call = json!([{"role": "developer", "content": [{"type": "text", "text": "s"}, {"type": "text", "text": "t"}]},
        {"role": "assistant", "content": null, "tool_calls": [{"function": {"name": "f", "arguments": "{\"a\":1}"}}]}]);
    for (source, expect) in [
        // Strings, objects.
        (
            "{% for m in messages %}{{ m.role }}={{ m.content }};{% for c in m.tool_calls %}{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}",
            "system=s\nt;assistant=;{\"a\": 1}",
        ),
        // Parts.
        (
            "{% for m in messages %}{% for p in m.content %}{% if p is mapping %}{{ p.text }}{% endif %}{% endfor %};{% endfor %}",
            "st;;",
        ),
        // Arguments as strings, no system role.
        (
            "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}{% endif %}{{ m.content }};{% for c in m.tool_calls %}{{ c.function.arguments + '' }}{% endfor %}{% endfor %}",
            "s\nt\n;{\"a\":1}",
        ),
    ] {
        assert_eq!(render(source, call.clone()).as_deref(), Ok(expect), "{source}");
    }
}

/// A conversation in letters: u user, a assistant, t one who thinks, c a call with its result, p two calls whose results are
/// in the other order, n a call without a result, d a result of a call that is not there.
fn talk(letters: &str) -> Vec<Value> {
    let mut out = vec![json!({"role": "system", "content": "Be brief."})];
    for (i, letter) in letters.chars().enumerate() {
        let call = |n: usize| {
            let function = json!({"name": format!("look{n}"), "arguments": format!("{{\"at\": [{i}, \"é\"]}}")});
            json!({"id": format!("call{i:04}{n}"), "type": "function", "function": function})
        };
        let calls = |n: usize| {
            let calls: Vec<Value> = (0..n).map(call).collect();
            json!({"role": "assistant", "content": "", "tool_calls": calls})
        };
        let result = |n: usize| json!({"role": "tool", "tool_call_id": format!("call{i:04}{n}"), "content": format!("result {i} {n}")});
        match letter {
            'u' => out.push(json!({"role": "user", "content": format!("question {i}")})),
            'a' => out.push(json!({"role": "assistant", "content": format!("answer {i}")})),
            't' => out.push(json!({"role": "assistant", "content": "so", "reasoning_content": format!("hm {i}")})),
            'c' => out.extend([calls(1), result(0)]),
            'p' => out.extend([calls(2), result(1), result(0)]),
            'n' => out.push(calls(1)),
            _ => out.push(result(7)),
        }
    }
    out
}

#[test]
fn a_rewritten_template_renders_what_the_given_one_does() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let more = ["../shared/data/templates", "../../shared/data/templates"].map(|p| here.join(p));
    let folders = more.into_iter().filter(|p| p.is_dir()).take(1).chain([here.join("tests/suite/templates")]);
    let files: Vec<PathBuf> =
        folders.flat_map(|f| std::fs::read_dir(f).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>()).collect();
    let talks = ["u", "uauau", "ucacuccau", "upcpaucpu", "utuctcu", "uncndau", "ucpccppcaucu", "ucccccc", "upapu"];
    let parameters = json!({"type": "object", "required": ["at"], "properties": {
        "at": {"type": "array", "items": {"type": ["string", "integer"]}, "description": "Where \"it\" is."},
        "how": {"type": "object", "properties": {"deep": {"enum": ["a", "b"], "default": null}}}}});
    let tool = |name| json!({"type": "function", "function": {"name": name, "description": "Looks.", "parameters": parameters}});
    let tools = json!([tool("look0"), tool("look1")]);
    let mut equal = 0;
    for file in files.iter().filter(|f| f.extension().is_some_and(|e| e == "jinja")) {
        let source = std::fs::read_to_string(file).unwrap();
        let quick = Template::new(&source).unwrap();
        let plain = Template::read(&source, str::to_owned, &|_| None).unwrap();
        assert_eq!((quick.caps, &quick.around), (plain.caps, &plain.around), "{}", file.display());
        for (at, letters) in talks.into_iter().enumerate() {
            let tools = (at % 2 == 1).then_some(&tools);
            let rendered = |t: &Template| t.render(&talk(letters), tools, &Options::default());
            match (rendered(&quick), rendered(&plain)) {
                // The lines of errors differ.
                (Err(_), Err(_)) => {}
                (quick, plain) => {
                    assert_eq!(quick, plain, "{}, {letters}", file.display());
                    equal += 1;
                }
            }
        }
    }
    assert!(equal > 40, "{equal}");
}
