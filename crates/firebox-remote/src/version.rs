//! What contents of a server are told apart by.
#![cfg_attr(not(feature = "client"), allow(dead_code, reason = "only the client asks"))]

#[cfg(feature = "client")]
use std::time::{SystemTime, UNIX_EPOCH};

use serde::{Deserialize, Serialize};

/// What a server says of a file without sending it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Version {
    pub(crate) bytes: u64,
    /// The server's tag of the content, or the time of its last change.
    pub(crate) tag: Option<String>,
}

/// Before the time of the last change, where a server has no strong tag.
const TIME: &str = "changed ";

/// Before a tag of contents that mean the same, but may differ in their bytes (RFC 9110, 8.8.1).
pub(crate) const WEAK: &str = "W/";

/// Age in seconds below which a time of change says nothing: that of what a server makes as it is asked is always now.
const YOUNG: u64 = 60;

impl Version {
    /// Whether contents of this version are the same byte for byte by the server's word.
    pub(crate) fn is_strong(&self) -> bool {
        self.tag.as_ref().is_some_and(|tag| !tag.starts_with(TIME) && !tag.starts_with(WEAK))
    }

    /// Whether the time of the last change is the best that is known of the content.
    pub(crate) fn is_by_time(&self) -> bool {
        self.tag.as_ref().is_some_and(|tag| tag.starts_with(TIME))
    }

    /// Whether parts that were fetched at different times are parts of the same (RFC 9110, 8.8.2.2).
    pub(crate) fn resumes(&self) -> bool {
        self.is_strong() || self.is_by_time()
    }
}

/// What is known of a content of which a server was `asked` then; its age is that at this time.
#[cfg(feature = "client")]
pub(crate) fn version(about: &object_store::ObjectMeta, asked: SystemTime) -> Version {
    // Servers without a time of change are given the epoch's.
    let changed = about.last_modified.timestamp();
    let now = asked.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let is_old = u64::try_from(changed).is_ok_and(|changed| changed.saturating_add(YOUNG) <= now);
    let weak = about.e_tag.as_ref().map_or_else(String::new, |tag| format!(" {tag}"));
    let time = || (changed != 0 && is_old).then(|| format!("{TIME}{changed}{weak}"));
    let strong = about.e_tag.clone().filter(|tag| !tag.starts_with(WEAK));
    Version { bytes: about.size, tag: strong.or_else(time).or_else(|| about.e_tag.clone()) }
}
