"""Table formats: idempotent commits of files that tasks wrote, without a jar."""
