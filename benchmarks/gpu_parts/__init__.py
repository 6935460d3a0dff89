"""The parts of benchmarks/gpu, one module a part, and what they share. Imports nothing but Python's own library."""
