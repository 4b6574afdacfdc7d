//! Strict, layered TOML pipelines with content-keyed stages
