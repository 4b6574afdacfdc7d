//! Writes the market of a settings file as CSV: `market_csv SETTINGS.market.toml OUT.csv`.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test may")]

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [settings, out] = arguments.as_slice() else {
        return Err("usage: market_csv SETTINGS.market.toml OUT.csv".into());
    };
    let market = firebox_data::MarketConfig::from_toml(&std::fs::read_to_string(settings)?)?;
    Ok(market.write_csv_file(out.as_ref())?)
}
