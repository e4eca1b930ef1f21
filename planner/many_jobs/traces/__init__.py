"""Traces of clusters: jobs that people submitted, read from the forms in which clusters publish them, and made into
jobs that a scheduler can run.

    read.read_trace(path)              the rows of a trace, whichever of six forms it is in
    records.window, head, load         a part of a trace, or the same jobs arriving faster
    assign.assign_workloads(trace, ..) jobs: a model, devices and an amount of work for each row

The forms, each documented in the module that reads it: `cellplan_csv` (our own), `philly`, `helios`,
`acme`, `pai`, `lingjun`, `sacct`.
"""
