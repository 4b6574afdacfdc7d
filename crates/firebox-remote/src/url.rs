//! Which paths are URLs, and what they say.

use std::path::Path;

use crate::RemoteError;

/// Schemes that are known, and whether their servers can list what they have.
const SCHEMES: [(&str, bool); 7] = [
    ("s3", true),
    ("gs", true),
    ("az", true),
    ("abfs", true),
    ("abfss", true),
    ("https", false),
    ("http", false),
];

/// Whether a path is a URL rather than a file: whether it begins with a scheme and `://`.
pub fn is_remote(path: &Path) -> bool {
    let Some((scheme, _)) = path.to_str().and_then(|text| text.split_once("://")) else {
        return false;
    };
    !scheme.is_empty() && scheme.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'+')
}

/// A URL in its parts.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(not(feature = "client"), allow(dead_code, reason = "parts are for the client"))]
pub(crate) struct Address {
    pub(crate) url: String,
    pub(crate) scheme: &'static str,
    /// Scheme and host, or bucket.
    pub(crate) root: String,
    /// What follows, without a slash before it.
    pub(crate) path: String,
    /// Whether it names a folder.
    pub(crate) folder: bool,
}

impl Address {
    pub(crate) fn read(url: &str) -> Result<Self, RemoteError> {
        let bad = |problem: &'static str| RemoteError::Url { url: shown(url), problem };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("it has no scheme"))?;
        let known = SCHEMES.iter().find(|(known, _)| scheme.eq_ignore_ascii_case(known));
        let (scheme, lists) = known.ok_or_else(|| bad("use s3://, gs://, az:// or https://"))?;
        let (host, path) = rest.split_at(host_end(rest));
        if host.is_empty() {
            return Err(bad("it names no bucket or host"));
        }
        if has_secrets(scheme, host) {
            return Err(bad("it holds a name or password: put them into the environment instead"));
        }
        if path.contains(['?', '#']) {
            return Err(bad("queries and fragments are not supported: download such a file first"));
        }
        if !lists && let Some(problem) = lost(path) {
            return Err(bad(problem));
        }
        let path = path.strip_prefix('/').unwrap_or(path);
        let folder = path.is_empty() || path.ends_with('/');
        if folder && !lists {
            return Err(bad("a web server cannot list a folder: name each file"));
        }
        Ok(Self {
            url: url.to_owned(),
            scheme,
            root: format!("{scheme}://{host}"),
            path: path.to_owned(),
            folder,
        })
    }

    /// What it names as copies are called: decoded, and of a folder without the last slash.
    pub(crate) fn file_url(&self) -> String {
        let path = percent_encoding::percent_decode_str(&self.path).decode_utf8_lossy();
        format!("{}/{}", self.root, path.trim_matches('/'))
    }
}

/// Where the host ends, or the bucket, in what follows `://`.
fn host_end(rest: &str) -> usize {
    rest.find(['/', '?', '#']).unwrap_or(rest.len())
}

/// Whether a host has a user before it, of Azure's schemes the container, which has no password; or a password may have
/// ended the host, as one that holds a slash does.
fn has_secrets(scheme: &str, host: &str) -> bool {
    let (user, host) =
        host.rsplit_once('@').map_or((None, host), |(user, host)| (Some(user), host));
    // Behind an IPv6 address in brackets, too.
    let port = host.rsplit(']').next().unwrap_or(host).split_once(':').map(|(_, port)| port);
    match scheme.to_ascii_lowercase().as_str() {
        "az" | "abfs" | "abfss" => user.is_some_and(|user| user.contains(':')) || port.is_some(),
        "http" | "https" => {
            user.is_some() || port.is_some_and(|port| port.contains(|c: char| !c.is_ascii_digit()))
        }
        _ => user.is_some() || port.is_some(),
    }
}

/// An address as messages print it and terminals keep it: without a user, a password, a query or a fragment. Nothing but the
/// scheme is left of one of which it is not known where a password ends.
fn shown(url: &str) -> String {
    let url = url.split(['?', '#']).next().unwrap_or(url);
    let Some((scheme, rest)) = url.split_once("://") else { return url.to_owned() };
    let (host, path) = rest.split_at(host_end(rest));
    match host.rsplit_once('@') {
        _ if !has_secrets(scheme, host) => url.to_owned(),
        Some((_, host_alone)) if !has_secrets(scheme, host_alone) => {
            format!("{scheme}://{host_alone}{path}")
        }
        _ => format!("{scheme}://…"),
    }
}

/// What a path of the web cannot be asked for: the client decodes it, and does not encode this again. (Nor `%2B`, whose plus
/// sign nearly all servers take as it is.)
fn lost(path: &str) -> Option<&'static str> {
    let path = path.to_ascii_lowercase();
    path.contains("%2f").then_some(
        "it holds %2F, a slash within a name that would be asked for as one between folders: download such a file first",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_and_urls_are_told_apart() {
        for remote in ["s3://a/b", "https://x/y.csv", "foo+bar://x"] {
            assert!(is_remote(Path::new(remote)), "{remote}");
        }
        for local in ["a/b.csv", "/data/s3:/x", "://x", "C:\\x", "a b://c"] {
            assert!(!is_remote(Path::new(local)), "{local}");
        }
    }

    #[test]
    fn urls_are_taken_apart_or_refused_with_the_reason() {
        let address = Address::read("s3://bucket/folder/bars.parquet").unwrap();
        assert_eq!((address.scheme, address.root.as_str()), ("s3", "s3://bucket"));
        assert_eq!((address.path.as_str(), address.folder), ("folder/bars.parquet", false));
        assert!(Address::read("gs://bucket").unwrap().folder);
        assert!(Address::read("az://container/folder/").unwrap().folder);
        let error = |url| Address::read(url).unwrap_err().to_string();
        assert!(error("ftp://a/b").ends_with("use s3://, gs://, az:// or https://"));
        assert!(error("s3:///b").contains("no bucket or host"));
        assert!(error("https://a/b/").contains("cannot list a folder"));
        assert!(error("https://a/b?token=1").contains("download such a file first"));
    }

    #[test]
    fn secrets_in_urls_are_refused_and_not_printed() {
        let check = |url: &str, printed: &str, problem: &str| {
            let error = Address::read(url).unwrap_err().to_string();
            assert!(error.starts_with(&format!("`{printed}` cannot be fetched: ")), "{error}");
            assert!(error.contains(problem), "{error}");
        };
        check("https://me:secret@a/b", "https://a/b", "environment");
        check("https://me@a/b?token=1", "https://a/b", "environment");
        check("s3://key:secret@bucket/b", "s3://bucket/b", "environment");
        check("S3://key@bucket/b", "S3://bucket/b", "environment");
        check("gs://me@bucket", "gs://bucket", "environment");
        check("abfss://box:secret@account.host/b", "abfss://account.host/b", "environment");
        check("ftp://me:secret@a/b", "ftp://a/b", "use s3://");
        check("abfss://box@account.host/b?sig=1", "abfss://box@account.host/b", "queries");
        check("https://a/b?token=1", "https://a/b", "queries");
        check("s3://bucket?token=1", "s3://bucket", "queries");
        check("https://a?mail=me@b/", "https://a", "queries");
        check("https://a/b#token=1", "https://a/b", "queries");
        // A password that ends the host by a sign of its own.
        check("s3://key:sec/ret@bucket/b", "s3://…", "environment");
        check("s3://key:sec?ret@bucket/b", "s3://…", "environment");
        check("https://me:sec/ret@host/b", "https://…", "environment");
        for server in ["http://127.0.0.1:9000/b", "http://[::1]:9000/b", "http://[::1]/b"] {
            assert!(Address::read(server).is_ok(), "{server}");
        }
        let address = Address::read("abfss://box@account.host/b").unwrap();
        assert_eq!(
            (address.root.as_str(), address.path.as_str()),
            ("abfss://box@account.host", "b")
        );
        // No user: the name of the file has the sign.
        assert_eq!(Address::read("s3://bucket/me@home.csv").unwrap().path, "me@home.csv");
    }

    #[test]
    fn what_the_client_would_ask_for_by_another_name_is_refused() {
        let error = |url| Address::read(url).unwrap_err().to_string();
        assert!(Address::read("https://a/b%2Bc.csv").is_ok());
        assert!(error("http://a/b%2fc.csv").contains("holds %2F"));
        // Stores of objects are asked for names, which are decoded.
        assert!(Address::read("s3://bucket/b%2Bc.csv").is_ok());
        assert!(Address::read("https://a/b%20c+d.csv").is_ok());
    }
}
