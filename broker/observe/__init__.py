"""State of the node: metrics, the ledger, logs, alarms, explanations."""
