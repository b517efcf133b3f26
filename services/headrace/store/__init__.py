"""The Redis connection and everything that speaks to it. The only package that imports `redis`."""
