"""Parts of all benchmarks: results, the machine, options, progress and percentiles."""
