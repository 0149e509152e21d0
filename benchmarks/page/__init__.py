"""docs/performance.md and its pictures: `document` puts the page together, one module writes each section.

A section shows the results of the benchmark of its name: `benchmarks.page.settling` those of `benchmarks.settling`.
"""
