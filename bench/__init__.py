"""Benchmarks: `pytest bench/` (make bench) and `python -m bench.phases`. Run on an idle machine."""
