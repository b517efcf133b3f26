"""The roster: which workers are alive, by leases that they must renew."""
