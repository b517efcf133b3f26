-- holder, sequence, digest and number of hashes of every live entry. Holders whose entry has expired are forgotten.
-- KEYS: holders.  ARGV: the entries' key prefix.
local heads = {}
for _, holder in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local entry = ARGV[1] .. holder
  local head = redis.call('HMGET', entry, 'sequence', 'digest')
  if head[1] then
    heads[#heads + 1] = { holder, head[1], head[2], redis.call('HLEN', entry) - 2 }
  else
    redis.call('SREM', KEYS[1], holder)
  end
end
return heads
