//! What llama.cpp makes of templates, and what it is not given.

use serde_json::{Value, json};

use super::read;
use crate::template::{Caps, Options, Template, TemplateError};

fn rendered(source: &str, messages: Value) -> Result<String, TemplateError> {
    let template = Template::checked(source, &read)?;
    template.render_request(&json!({"messages": messages}), &Options::default())
}

#[test]
fn a_template_is_read_rendered_and_tried() {
    let source = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}";
    let template = read(source).unwrap();
    let caps = Caps { string_content: true, typed_content: false, system_role: true, object_arguments: false };
    assert_eq!(template.caps(), caps);
    let messages = json!([{"role": "user", "content": "é\u{1f600} <b>"}, {"role": "tool", "content": null}]);
    let text = template.render(&json!({"messages": messages}), 0).unwrap();
    assert_eq!(text, "user: é\u{1f600} <b>\ntool: \n");
    assert!(read("{% for %}").is_none());
    let raises = read("{{ raise_exception('no ' + messages[0].role) }}").unwrap();
    let refused = raises.render(&json!({"messages": messages}), 0).unwrap_err();
    assert_eq!(refused, TemplateError::Raised("no user".into()));
    // A letter cut in pieces is told as one that cannot be read.
    let cut = read("{{ messages[0].content[:1] }}").unwrap();
    assert_eq!(cut.render(&json!({"messages": messages}), 0).unwrap(), "\u{fffd}");
}

#[test]
fn dates_are_those_on_the_wall() {
    let date = read("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}").unwrap();
    for shown in [0, 1_700_000_000, 1_751_000_000] {
        let told = date.render(&json!({}), shown).unwrap();
        let ours = Template::new("{{ strftime_now('%Y-%m-%d %H:%M:%S') }}").unwrap();
        let options = Options { now: shown, ..Options::default() };
        assert_eq!(told, ours.render(&[], None, &options).unwrap());
    }
    let now = 1_700_000_000;
    assert!(super::wall_clock(now).abs_diff(now) <= 14 * 3600);
}

#[test]
fn where_the_engines_differ_the_prompt_is_llama_cpps() {
    let own = |source: &str| !Template::checked(source, &read).unwrap().is_rendered_elsewhere();
    // Lists are never equal to it, so messages whose content is in parts are not. Our engine does the same.
    let last = "{% for m in messages %}{% if m == messages[-1] %}[last]{% endif %}{% if m.content is string %}{{ m.content }}\
                {% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
    assert!(own(last));
    assert_eq!(rendered(last, json!([{"role": "user", "content": "a"}])).unwrap(), "[last]a");
    let parts = json!([{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]);
    assert_eq!(rendered(last, json!([{"role": "user", "content": parts}])).unwrap(), "ab");
    // What was set in one round of a loop is still there in the next, and in ours where a template needs it.
    let kept = "{% for m in messages %}{% if m.reasoning_content %}{% set r = m.reasoning_content %}{% endif %}\
                {% if r is defined %}[{{ r }}]{% endif %}{{ m.content }}{% endfor %}";
    assert!(own(kept));
    let thinks = json!({"role": "assistant", "content": "a", "reasoning_content": "hm"});
    let says = json!({"role": "assistant", "content": "b"});
    let user = json!({"role": "user", "content": "c"});
    assert_eq!(rendered(kept, json!([user, thinks, user, says, user])).unwrap(), "c[hm]a[hm]c[hm]b[hm]c");
    // Nothing may stand on either side of a sum; text is cut by bytes.
    let nothing = "{{ messages[0].content + messages[0].name }}";
    assert_eq!(rendered(nothing, json!([{"role": "user", "content": "a"}])).unwrap(), "a");
    let bytes = "{{ messages[-1].content[1:] }}";
    assert_eq!(rendered(bytes, json!([{"role": "user", "content": "éa"}])).unwrap(), "\u{fffd}a");
    assert!(!own(bytes));
    // A macro sees what is set where it is called.
    let seen =
        "{% macro name() %}{{ '<' + tool.function.name }}{% endmacro %}{% for tool in tools %}{{ name() }}{% endfor %}";
    let tool = json!({"type": "function", "function": {"name": "f"}});
    let request = json!({"messages": [{"role": "user", "content": "a"}], "tools": [tool]});
    let template = Template::checked(seen, &read).unwrap();
    assert_eq!(template.render_request(&request, &Options::default()).unwrap(), "<f");
    // What it refuses is refused.
    let lists = "{% for t in tools %}{% if t.function.parameters.properties.n.type in ['a'] %}x{% endif %}{% endfor %}";
    let template = Template::checked(lists, &read).unwrap();
    let ask = |kind: Value| {
        let tool =
            json!({"type": "function", "function": {"name": "f", "parameters": {"properties": {"n": {"type": kind}}}}});
        template.render_request(
            &json!({"messages": [{"role": "user", "content": "a"}], "tools": [tool]}),
            &Options::default(),
        )
    };
    assert_eq!(ask(json!("a")).unwrap(), "x");
    let refused = ask(json!(["a", "b"])).unwrap_err().to_string();
    assert!(refused.contains("Unknown operator \"in\" between Array and Array"), "{refused}");
}

#[test]
fn what_a_template_understands_is_what_llama_cpp_finds() {
    let caps = |source: &str| Template::checked(source, &read).unwrap().caps();
    // Printed as a map, which prints nothing: arguments stay the client's own text.
    let printed = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls %}{{ c.function.arguments }}{% endfor %}{% endfor %}";
    assert!(!caps(printed).object_arguments);
    assert!(caps(&printed.replace("arguments }}", "arguments | tojson }}")).object_arguments);
    // Content that is taken apart where it is no string.
    let parts = "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endif %}{% endfor %}";
    assert!(caps(parts).typed_content && caps(parts).string_content);
    // A system prompt that nothing reads.
    let users = "{% for m in messages %}{% if m.role == 'user' %}{{ m.content }}{% endif %}{% endfor %}";
    assert!(!caps(users).system_role);
}

#[test]
fn what_may_have_no_end_is_never_handed_over() {
    let user = json!([{"role": "user", "content": "a"}]);
    for (source, needle) in [
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ messages | nosuch }}{{ f() }}", "nosuch"),
        ("{{ messages[0].content[:1] }}{% for i in range(2000000000) %}x{% endfor %}", "range"),
    ] {
        let error = rendered(source, user.clone()).unwrap_err().to_string();
        assert!(error.contains(needle), "{error}");
    }
    // Over this one llama.cpp's engine would end the process; ours panics, which is caught.
    let divides =
        "{{ messages[0].content[1:] }}{% if messages[-1].content == 'go' %}{{ 1 is divisibleby(0) }}{% endif %}";
    for source in [divides, "{{ 1 is divisibleby(0) }}"] {
        let error = rendered(source, json!([{"role": "user", "content": "go"}])).unwrap_err().to_string();
        assert!(error.contains("gave up"), "{error}");
    }
    // One that behaved while it was tried.
    let later = "{% macro f() %}{{ f() }}{% endmacro %}{{ messages[-1].content[1:] }}{% if messages[-1].content == 'go' %}{{ f() }}{% endif %}";
    let template = Template::checked(later, &read).unwrap();
    assert!(template.is_rendered_elsewhere());
    let say = |text: &str| {
        let request = json!({"messages": [{"role": "user", "content": text}]});
        template.render_request(&request, &Options::default())
    };
    assert_eq!(say("éa").unwrap(), "\u{fffd}a");
    assert!(say("go").unwrap_err().to_string().contains("recursion"));
}

#[test]
fn what_is_read_here_takes_no_more_stack_than_there_is_there() {
    // Just below what a template may have (`template/limits.rs`, and minijinja's own limit of 150); threads of tests have the
    // 2 MiB that those have in which models are read.
    let parens = format!("{{{{ {}messages[0].content{} }}}}", "(".repeat(120), ")".repeat(120));
    let branches = format!("{{% if a %}}{}{{% else %}}z{{% endif %}}", "{% elif a %}b".repeat(390));
    let blocks = format!("{}x{}", "{% if messages %}".repeat(120), "{% endif %}".repeat(120));
    let loops = format!("{}x{}", "{% for m in [1] %}".repeat(60), "{% endfor %}".repeat(60));
    let sum = format!("{{{{ messages[0].content{} }}}}", " ~ 'a'".repeat(240));
    let negated = format!("{{{{ {}true }}}}", "not ".repeat(120));
    let chosen = format!("{{{{ {}'a' }}}}", "'b' if c else ".repeat(120));
    let list = format!("{{% set a = {}{} %}}{{{{ a }}}}x", "[".repeat(120), "]".repeat(120));
    let mut read_too = 0;
    for source in [parens, branches, blocks, loops, sum, negated, chosen, list] {
        let ours = Template::checked(&source, &read);
        let Ok(template) = ours else { continue };
        let request = json!({"messages": [{"role": "user", "content": "a"}]});
        assert!(template.render_request(&request, &Options::default()).is_ok(), "{source}");
        read_too += usize::from(read(&source).is_some());
    }
    assert!(read_too > 5, "{read_too}");
}
