"""Code of the Spark driver: batches and their commits, replays, audits and upkeep of tables."""
