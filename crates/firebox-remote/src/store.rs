//! The client of each service, with keys from the environment.

use std::time::Duration;

use object_store::aws::AmazonS3Builder;
use object_store::azure::MicrosoftAzureBuilder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::http::HttpBuilder;
use object_store::{ClientOptions, ObjectStore, RetryConfig};

use crate::client::failed;
use crate::error::Local;
use crate::url::Address;
use crate::{RemoteConfig, RemoteError};

/// How servers are asked.
pub(crate) fn client(config: &RemoteConfig) -> ClientOptions {
    // A server of one's own often has no certificate; whoever names one without means it.
    ClientOptions::new()
        .with_timeout(config.timeout)
        .with_connect_timeout(config.timeout)
        .with_allow_http(true)
}

/// Time for all tries of a request.
fn patience(config: &RemoteConfig) -> Duration {
    let tries = u32::try_from(config.retries).unwrap_or(u32::MAX).saturating_add(1);
    config.timeout.saturating_mul(tries)
}

/// The store of an address, with keys from the environment.
pub(crate) fn store(
    address: &Address,
    config: &RemoteConfig,
    client: ClientOptions,
) -> Result<Box<dyn ObjectStore>, RemoteError> {
    let retry = RetryConfig {
        max_retries: config.retries,
        retry_timeout: patience(config),
        ..RetryConfig::default()
    };
    let root = address.root.as_str();
    let boxed = |store| -> Box<dyn ObjectStore> { store };
    refuse_endpoint(address)?;
    let made = match address.scheme {
        "s3" => AmazonS3Builder::from_env()
            .with_url(root)
            .with_client_options(client)
            .with_retry(retry)
            .build()
            .map(|store| boxed(Box::new(store))),
        "gs" => GoogleCloudStorageBuilder::from_env()
            .with_url(root)
            .with_client_options(client)
            .with_retry(retry)
            .build()
            .map(|store| boxed(Box::new(store))),
        "http" | "https" => HttpBuilder::new()
            .with_url(root)
            .with_client_options(client)
            .with_retry(retry)
            .build()
            .map(|store| boxed(Box::new(store))),
        _ => MicrosoftAzureBuilder::from_env()
            .with_url(root)
            .with_client_options(client)
            .with_retry(retry)
            .build()
            .map(|store| boxed(Box::new(store))),
    };
    made.map_err(|source| failed(&address.url, config, Local::Nothing, source))
}

/// The client panics on an address of a server that is none.
fn refuse_endpoint(address: &Address) -> Result<(), RemoteError> {
    use object_store::aws::AmazonS3ConfigKey::Endpoint;
    let set = AmazonS3Builder::from_env().get_config_value(&Endpoint);
    let valid = |text: &str| {
        let host = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b".-_~:/[]@%".contains(&byte);
        host.is_some_and(|host| !host.is_empty() && host.bytes().all(allowed))
    };
    if address.scheme != "s3" || set.is_none_or(|text| valid(&text)) {
        return Ok(());
    }
    let (url, problem) = (
        address.url.clone(),
        "the server in AWS_ENDPOINT_URL is no address such as http://host:9000",
    );
    Err(RemoteError::Url { url, problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_time_and_no_number_of_tries_is_too_large() {
        let of = |timeout: Duration, retries: usize| {
            patience(&RemoteConfig { timeout, retries, ..RemoteConfig::default() })
        };
        let second = Duration::from_secs(1);
        assert_eq!(of(30 * second, 4), 150 * second);
        assert_eq!(of(second, 0), second);
        assert_eq!(of(Duration::MAX, 4), Duration::MAX);
        // More than a whole number of 32 bits holds.
        assert_eq!(of(second, usize::MAX), Duration::from_secs(4_294_967_295));
    }
}
