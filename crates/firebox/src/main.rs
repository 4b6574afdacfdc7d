//! Train sequence encoders fast and honestly from one declarative file
fn main() {}
