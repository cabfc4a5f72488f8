"""Processes: the warm pool of workers, and torch's elastic agent for scripts."""
