//! Parquet, CSV, Arrow, npy and ts files to checked, leak-free windows
