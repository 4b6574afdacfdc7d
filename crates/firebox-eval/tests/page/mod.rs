//! What a browser would stumble over in a page.

/// What must hold for every page.
pub(crate) fn check(page: String) -> String {
    for loaded in
        ["http:", "https:", "//", "src=", "url(", "@import", "<script", "<link", "javascript:"]
    {
        assert!(!page.contains(loaded), "the page contains `{loaded}`");
    }
    for number in ["NaN", "inf\"", "inf ", "Infinity", "-0\""] {
        assert!(!page.contains(number), "the page contains `{number}`");
    }
    let mut open: Vec<&str> = Vec::new();
    let mut ids = std::collections::BTreeSet::new();
    let mut rest = page.as_str();
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').expect("a tag that ends");
        let tag = &rest[start + 1..end];
        rest = &rest[end + 1..];
        let name = tag.trim_start_matches('/').split([' ', '/', '\n']).next().unwrap();
        assert!(tag.matches('"').count().is_multiple_of(2), "quotes of <{tag}>");
        if let Some(id) = tag.split(" id=\"").nth(1) {
            assert!(ids.insert(id.split('"').next().unwrap().to_owned()), "id of <{tag}> twice");
        }
        match name {
            "!DOCTYPE" | "meta" | "br" => {}
            _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name), "</{name}>"),
            _ if tag.ends_with('/') => {}
            _ => open.push(name),
        }
        if name == "style" && !tag.starts_with('/') {
            rest = &rest[rest.find("</style>").unwrap()..];
        }
    }
    assert!(open.is_empty(), "{open:?} stay open");
    for link in page.split("href=\"#").skip(1) {
        let id = link.split('"').next().unwrap();
        assert!(ids.contains(id), "#{id} leads nowhere");
    }
    page
}
