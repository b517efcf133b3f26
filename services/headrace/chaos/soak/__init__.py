"""The soak: thousands of requests under random cancels, deaths and drains, and whether anything grows meanwhile."""
