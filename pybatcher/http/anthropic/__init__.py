"""The endpoints of Anthropic's Messages API."""
