"""Facts about the machine: CPU cores, memory and CUDA devices."""
