"""The experiments of the course, one file each: what is asked, what is predicted, what came of it."""
