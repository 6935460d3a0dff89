"""The parts of benchmarks/gpu, one module per part, and what they share. It imports only Python's own library."""
