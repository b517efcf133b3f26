-- Prolong an entry's life. Returns 0 if there is none.
-- KEYS: entry.  ARGV: ttl in ms.
return redis.call('PEXPIRE', KEYS[1], ARGV[1])
