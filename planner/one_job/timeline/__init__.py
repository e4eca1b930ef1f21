"""The timeline of a plan, stages by micro-batch: as records, as a trace for Perfetto, as an SVG."""
