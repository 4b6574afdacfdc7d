//! Seeded, resumable, prefetching batches from windows to a Burn device
