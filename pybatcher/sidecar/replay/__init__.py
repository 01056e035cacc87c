"""Replay: pending calls outlive a connection or a worker, and are sent again with their tokens."""
