"""What the node is doing: metrics, the ledger, logs, alarms, explanations."""
