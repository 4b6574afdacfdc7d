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
        let bad = |problem: &'static str| RemoteError::Url { url: url.to_owned(), problem };
        let (scheme, rest) = url.split_once("://").ok_or_else(|| bad("it has no scheme"))?;
        let known = SCHEMES.iter().find(|(known, _)| scheme.eq_ignore_ascii_case(known));
        let (scheme, lists) = known.ok_or_else(|| bad("use s3://, gs://, az:// or https://"))?;
        let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
        if host.is_empty() {
            return Err(bad("it names no bucket or host"));
        }
        if host.contains('@') && matches!(*scheme, "http" | "https") {
            return Err(bad("it holds a name or password: put them into the environment instead"));
        }
        if path.contains(['?', '#']) {
            return Err(bad("queries and fragments are not supported: download such a file first"));
        }
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
        assert!(error("https://me:secret@a/b").contains("environment"));
    }
}
