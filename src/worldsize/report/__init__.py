"""One self-contained HTML page from the records of a run; read `page` for its skeleton, `charts` for its pictures."""
