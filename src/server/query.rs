//! The query of a request to one of the proxy's own paths: what it may hold is named, and anything else is an error rather
//! than ignored.

use percent_encoding::percent_decode_str;

use crate::proxy::Error;

/// Names and values, percent-decoded, in the order in which they came. A name without `=` has an empty value.
pub(super) struct Query(Vec<(String, String)>);

impl Query {
    /// Reads a query that may hold these names.
    ///
    /// # Errors
    /// 400 for any other name.
    pub(super) fn read(query: Option<&str>, names: &[&str]) -> Result<Query, Error> {
        let pairs = query.unwrap_or("").split('&').filter(|pair| !pair.is_empty());
        let pairs = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
        let pairs: Vec<(String, String)> = pairs.map(|(name, value)| (decode(name), decode(value))).collect();
        let Some((name, _)) = pairs.iter().find(|(name, _)| !names.contains(&name.as_str())) else {
            return Ok(Query(pairs));
        };
        let shown: String = name.chars().filter(|c| !c.is_control()).take(80).collect();
        let hint = match names {
            [] => "it takes none".to_owned(),
            names => format!("it takes {}", names.join(", ")),
        };
        Err(Error::client(400, "unknown_parameter", format!("there is no parameter `{shown}` here"), &hint))
    }

    /// The first value of a name.
    pub(super) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// All values of a name.
    pub(super) fn all(&self, name: &str) -> impl Iterator<Item = &str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, value)| value.as_str())
    }

    /// A whole number.
    ///
    /// # Errors
    /// 400 for anything else.
    pub(super) fn number<T: std::str::FromStr>(&self, name: &str) -> Result<Option<T>, Error> {
        let Some(value) = self.get(name) else { return Ok(None) };
        value.parse().map(Some).map_err(|_| {
            let shown: String = value.chars().filter(|c| !c.is_control()).take(80).collect();
            Error::client(400, "bad_parameter", format!("`{name}={shown}` is not a whole number"), "write one, from 0")
        })
    }
}

/// Percent-decodes a path segment or value.
pub(super) fn decode(text: &str) -> String {
    percent_decode_str(text).decode_utf8_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_query_holds_what_is_known_and_nothing_else() {
        let query = Query::read(Some("since=3&follow&kind=a%20b&kind=c"), &["since", "follow", "kind"]).unwrap();
        assert_eq!((query.number::<i64>("since").unwrap(), query.get("follow")), (Some(3), Some("")));
        assert_eq!(query.all("kind").collect::<Vec<_>>(), ["a b", "c"]);
        assert!(query.number::<i64>("kind").is_err());
        assert_eq!(Query::read(Some("sinc=3"), &["since"]).map(|_| ()).map_err(|e| e.status()), Err(400));
        assert!(Query::read(None, &[]).is_ok() && Query::read(Some(""), &[]).is_ok());
    }
}
