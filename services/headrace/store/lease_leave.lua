-- Give a lease back, unless another life has taken it.
-- KEYS: lease, workers, events.  ARGV: worker, incarnation, cap of events.
if redis.call('HGET', KEYS[1], 'incarnation') ~= ARGV[2] then
  return 0
end
redis.call('DEL', KEYS[1])
redis.call('SREM', KEYS[2], ARGV[1])
redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[3], '*', 'worker', ARGV[1])
return 1
