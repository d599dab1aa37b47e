"""The embedded store: RocksDB in one directory."""
