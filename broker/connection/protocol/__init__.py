"""What each packet does: from received bytes to their effects."""
