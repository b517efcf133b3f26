"""The prefix index: which worker holds which KV blocks."""
