"""Who gets a message: topic filters, share groups, retained messages."""
