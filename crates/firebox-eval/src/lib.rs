//! Metrics, probes, baselines and self-contained reports for sequence encoders
