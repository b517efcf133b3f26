-- End an incarnation's entry for good: updates still under way to it are refused.
-- KEYS: entry, updates, holders, ended.  ARGV: holder, how long the refusal is remembered in ms, cap of updates.
redis.call('SET', KEYS[4], '1', 'PX', ARGV[2])
redis.call('SREM', KEYS[3], ARGV[1])
if redis.call('DEL', KEYS[1]) == 1 then
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[3], '*', 'kind', 'dropped', 'holder', ARGV[1], 'sequence', '0')
end
return 1
