//! A training loop for Burn that resumes exactly: schedules, clipping, checkpoints
