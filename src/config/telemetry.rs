//! `[telemetry]`: where the spans of requests go, with what OpenTelemetry's own variables say of that
//! (<https://opentelemetry.io/docs/specs/otel/protocol/exporter/>).
//!
//! A key of ours counts more than a variable, and a variable of traces counts more than the one for every signal.

use std::time::Duration;

use http::{HeaderMap, HeaderName, HeaderValue};
use percent_encoding::percent_decode_str;

use super::problem::Problem;
use super::written::{Sourced, Value, Written, any_text, boolean};
use super::written::{Sources, note};
use super::{Environment, Layers, upstream};

/// Keys of `[telemetry]`.
pub(crate) const KEYS: &[&str] = &["traces", "endpoint", "headers"];

/// Where a collector listens when nobody says otherwise: OTLP over HTTP, on this machine.
const USUAL: &str = "http://localhost:4318";

/// What a base address leads to.
const PATH: &str = "/v1/traces";

/// Where spans go, and what goes with them.
#[derive(Debug, Clone)]
pub struct Telemetry {
    /// The whole address that takes them.
    pub url: String,
    /// Headers of each delivery; those that hold keys are marked as such.
    pub headers: HeaderMap,
    /// How long a delivery may take.
    pub timeout: Duration,
    /// How long spans are gathered before a delivery.
    pub delay: Duration,
    /// What is said of this program: attributes by key, `service.name` among them.
    pub resource: Vec<(String, String)>,
}

/// Reads `[telemetry]`; `None` where no spans are wanted.
pub(super) fn resolve(
    layers: &Layers,
    environment: &Environment,
    sources: &mut Sources,
    problems: &mut Vec<Problem>,
) -> Option<Telemetry> {
    let headers = layers.take("telemetry.headers", any_text, problems);
    let endpoint = layers.take("telemetry.endpoint", endpoint, problems);
    let traces = layers.take("telemetry.traces", boolean, problems);
    let secret = |text: &String| if text.is_empty() { String::new() } else { "(set)".to_owned() };
    note("telemetry.headers", headers.as_ref(), secret, sources);
    note("telemetry.endpoint", endpoint.as_ref(), String::clone, sources);
    note("telemetry.traces", traces.as_ref(), bool::to_string, sources);
    let is_off = environment.get("OTEL_SDK_DISABLED").is_some_and(|text| text.trim().eq_ignore_ascii_case("true"))
        || environment.get("OTEL_TRACES_EXPORTER").is_some_and(|text| text.trim() == "none");
    if !traces?.value || is_off {
        return None;
    }
    Some(Telemetry {
        url: address(endpoint?, environment, problems)?,
        headers: header_map(headers?, environment, problems)?,
        timeout: milliseconds(environment, &of_traces("TIMEOUT"), 10_000),
        delay: milliseconds(environment, &["OTEL_BSP_SCHEDULE_DELAY".to_owned()], 5_000),
        resource: resource(environment),
    })
}

/// The two variables for an exporter's setting; the one for traces alone counts more.
fn of_traces(setting: &str) -> [String; 2] {
    ["OTEL_EXPORTER_OTLP_TRACES_", "OTEL_EXPORTER_OTLP_"].map(|prefix| format!("{prefix}{setting}"))
}

/// An address, or nothing.
fn endpoint(value: &Value) -> Result<String, String> {
    match any_text(value)? {
        text if text.is_empty() => Ok(text),
        text if text.contains('@') => Err("must not hold a user or password\nput the key into `headers`".to_owned()),
        _ => upstream::url(value),
    }
}

/// The whole address: a base is followed by the path of traces, the variable for traces alone is taken as it is.
fn address(ours: Sourced<String>, environment: &Environment, problems: &mut Vec<Problem>) -> Option<String> {
    if !ours.value.is_empty() {
        return Some(below(&ours.value));
    }
    let [whole, base] = of_traces("ENDPOINT");
    let mut variable = |name: &str| {
        let text = environment.get(name)?.trim();
        let written = Written::word(name, text, "environment", &format!("environment {name}"));
        Some(written.read(endpoint, problems).map(|address| address.value))
    };
    match variable(&whole) {
        Some(address) => address,
        None => variable(&base).unwrap_or_else(|| Some(USUAL.to_owned())).map(|base| below(&base)),
    }
}

fn below(base: &str) -> String {
    let base = base.trim_end_matches('/');
    if base.ends_with(PATH) { base.to_owned() } else { format!("{base}{PATH}") }
}

/// `key=value,key=value`, values percent-encoded, as in W3C's baggage.
fn pairs(text: &str) -> impl Iterator<Item = Result<(String, String), ()>> + '_ {
    text.split(',').map(str::trim).filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').ok_or(())?;
        let decoded = percent_decode_str(value.trim()).decode_utf8().map_err(|_| ())?;
        Ok((key.trim().to_owned(), decoded.into_owned()))
    })
}

fn header_map(ours: Sourced<String>, environment: &Environment, problems: &mut Vec<Problem>) -> Option<HeaderMap> {
    let given = Some(("headers".to_owned(), ours.value, ours.source)).filter(|(_, text, _)| !text.is_empty());
    let variables = of_traces("HEADERS");
    let told = given.or_else(|| {
        let found = variables.iter().find_map(|name| Some((name, environment.get(name)?)));
        found.map(|(name, text)| (name.clone(), text.to_owned(), "environment".to_owned()))
    });
    let Some((name, text, place)) = told else { return Some(HeaderMap::new()) };
    let read = |pair: Result<(String, String), ()>| -> Option<(HeaderName, HeaderValue)> {
        let (key, value) = pair.ok()?;
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(key).ok()?, value))
    };
    let read: Option<HeaderMap> = pairs(&text).map(read).collect();
    if read.is_none() {
        let message = format!("`{name}` must be headers such as \"authorization=Bearer%20…,x-team=garden\"");
        problems.push(Problem::new(&place, message).hint("write a comma in a value as %2C, and a blank as %20"));
    }
    read
}

/// A time of the environment's; what is no number of milliseconds above 0 counts as not said.
fn milliseconds(environment: &Environment, names: &[String], usual: u64) -> Duration {
    let said = names.iter().find_map(|name| environment.get(name)?.trim().parse().ok().filter(|ms: &u64| *ms > 0));
    Duration::from_millis(said.unwrap_or(usual))
}

/// What the environment says of this program, and how it is called: `OTEL_SERVICE_NAME` counts more than the attribute.
fn resource(environment: &Environment) -> Vec<(String, String)> {
    let told = environment.get("OTEL_RESOURCE_ATTRIBUTES").unwrap_or_default();
    let mut out: Vec<(String, String)> =
        pairs(told).filter_map(Result::ok).filter(|(key, _)| !key.is_empty()).collect();
    if let Some(name) = environment.get("OTEL_SERVICE_NAME") {
        out.retain(|(key, _)| key != "service.name");
        out.push(("service.name".to_owned(), name.trim().to_owned()));
    }
    for (key, value) in [("service.name", "windowsill"), ("service.version", env!("CARGO_PKG_VERSION"))] {
        if !out.iter().any(|(known, _)| known == key) {
            out.push((key.to_owned(), value.to_owned()));
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::super::{Flags, load_from};
    use super::*;

    /// The outcome of a file and an environment.
    fn read(vars: &[(&str, &str)]) -> Result<Option<Telemetry>, String> {
        let vars: BTreeMap<String, String> =
            vars.iter().chain(&[("HOME", "/nowhere")]).map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect();
        let environment = Environment { vars, cwd: "/nowhere".into() };
        let config = load_from(&Flags::default(), &environment);
        config.map(|config| config.log.telemetry).map_err(|problems| format!("{problems:?}"))
    }

    fn on(vars: &[(&str, &str)]) -> Telemetry {
        read(&[&[("WINDOWSILL_TELEMETRY_TRACES", "true")], vars].concat()).unwrap().expect("it is on")
    }

    #[test]
    fn it_is_off_until_somebody_wants_it() {
        assert!(read(&[]).unwrap().is_none());
        assert!(read(&[("OTEL_EXPORTER_OTLP_ENDPOINT", "http://collector:4318")]).unwrap().is_none());
        for off in [("OTEL_SDK_DISABLED", "TRUE"), ("OTEL_TRACES_EXPORTER", "none")] {
            assert!(read(&[("WINDOWSILL_TELEMETRY_TRACES", "true"), off]).unwrap().is_none(), "{off:?}");
        }
    }

    #[test]
    fn the_address_is_the_nearest_that_is_said() {
        let of = |vars: &[(&str, &str)]| on(vars).url;
        let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://one:4318/in/");
        let whole = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "https://two/as/it/is");
        assert_eq!(of(&[]), "http://localhost:4318/v1/traces");
        assert_eq!(of(&[base]), "http://one:4318/in/v1/traces");
        assert_eq!(of(&[base, whole]), "https://two/as/it/is");
        assert_eq!(of(&[base, whole, ("WINDOWSILL_TELEMETRY_ENDPOINT", "http://three")]), "http://three/v1/traces");
        assert_eq!(of(&[("WINDOWSILL_TELEMETRY_ENDPOINT", "http://four/v1/traces")]), "http://four/v1/traces");
    }

    #[test]
    fn headers_times_and_names_are_read_as_the_specification_says() {
        let told = on(&[
            ("OTEL_EXPORTER_OTLP_HEADERS", "x-other=1"),
            ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", " authorization = Bearer%20a%2Cb , x-team=garden"),
            ("OTEL_EXPORTER_OTLP_TIMEOUT", "2500"),
            ("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", "soon"),
            ("OTEL_BSP_SCHEDULE_DELAY", "40"),
            ("OTEL_RESOURCE_ATTRIBUTES", "service.name=one,deployment.environment.name=my%20home"),
            ("OTEL_SERVICE_NAME", "two"),
        ]);
        assert_eq!(
            (&told.headers["authorization"], &told.headers["x-team"]),
            (&"Bearer a,b".parse().unwrap(), &"garden".parse().unwrap())
        );
        assert!(!told.headers.contains_key("x-other") && told.headers["authorization"].is_sensitive());
        assert_eq!((told.timeout.as_millis(), told.delay.as_millis()), (2500, 40));
        let attribute =
            |key: &str| told.resource.iter().filter(|(k, _)| k == key).map(|(_, v)| v.as_str()).collect::<Vec<_>>();
        assert_eq!(
            (attribute("service.name"), attribute("deployment.environment.name")),
            (vec!["two"], vec!["my home"])
        );
        assert_eq!(attribute("service.version"), [env!("CARGO_PKG_VERSION")]);
        assert!(
            on(&[("WINDOWSILL_TELEMETRY_HEADERS", "a=1"), ("OTEL_EXPORTER_OTLP_HEADERS", "b=1")])
                .headers
                .contains_key("a")
        );
    }

    #[test]
    fn what_is_wrong_is_said_without_the_secret() {
        let wrong =
            |name: &str, value: &str| read(&[("WINDOWSILL_TELEMETRY_TRACES", "true"), (name, value)]).unwrap_err();
        for (name, value, says) in [
            ("WINDOWSILL_TELEMETRY_ENDPOINT", "collector:4318", "http://collector:4318"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://me:secret@collector", "`headers`"),
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "ftp://secret", "http"),
            ("WINDOWSILL_TELEMETRY_HEADERS", "authorization Bearer secret", "%20"),
            ("OTEL_EXPORTER_OTLP_HEADERS", "a b=secret", "OTEL_EXPORTER_OTLP_HEADERS"),
        ] {
            let said = wrong(name, value);
            assert!(said.contains(says), "{said}");
            assert!(name.ends_with("TRACES_ENDPOINT") || !said.contains("secret"), "{said}");
        }
    }
}
