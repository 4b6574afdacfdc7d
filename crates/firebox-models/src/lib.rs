//! Sequence encoders for Burn: the Firebox model zoo
