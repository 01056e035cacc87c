"""The incremental parser of a model's output: content, reasoning and tool calls."""
