//! Fused sequence operations for Burn: LSTM and more, forward and backward
