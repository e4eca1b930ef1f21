"""What publishers of training runs mean by their words, as explicit columns that `cellplan validate` reads.

    python -m bench.accuracy.adapters PUBLISHED.csv -o EXPLICIT.csv

reads a run table as its sources wrote it (device names in prose, frameworks told by the source, settings in notes,
sizes behind a model's name, units and counting by source) and writes the same rows with all of that in columns.
"""
