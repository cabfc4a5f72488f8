"""Is the model as good as before: equivalence of runs, and what large batches do to accuracy."""
