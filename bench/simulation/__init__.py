"""The real scheduler over an engine that only keeps books, in time that only is computed."""
