"""Calls that are made of other calls: lists of prompts, prompts with scores, loops, maps."""
