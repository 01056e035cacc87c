"""The endpoints of OpenAI's API: completions, chat, responses, embeddings and tokens."""
