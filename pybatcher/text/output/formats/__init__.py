"""Output formats of model families: the markers of reasoning, content and tool calls."""
