"""jq in rules: programs that provably end run in the broker, all others in worker processes that can be killed."""
