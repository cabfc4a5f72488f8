"""Our own training loop."""
