"""Arithmetic alone: no process group, no file, no clock, no environment."""
