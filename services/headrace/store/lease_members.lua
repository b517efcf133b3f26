-- Every live lease's info. Names whose lease has expired are forgotten.
-- KEYS: workers.  ARGV: the lease keys' prefix.
local members = {}
for _, worker in ipairs(redis.call('SMEMBERS', KEYS[1])) do
  local info = redis.call('HGET', ARGV[1] .. worker, 'info')
  if info then
    members[#members + 1] = info
  else
    redis.call('SREM', KEYS[1], worker)
  end
end
return members
