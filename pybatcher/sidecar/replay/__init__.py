"""What outlives a connection or a worker: pending calls, sent again with the tokens they have."""
