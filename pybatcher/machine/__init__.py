"""Facts about the machine: CPU cores and CUDA devices."""
