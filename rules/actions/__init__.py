"""What rules do with their rows: publish them again, log them, append them to a stream."""
