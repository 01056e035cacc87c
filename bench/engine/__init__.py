"""Speed and quality of the engine: compared with other engines, and with the machine's limits."""
