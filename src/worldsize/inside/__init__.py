"""What we put into somebody else's process."""
