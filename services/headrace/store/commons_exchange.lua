-- Leave what a router earned and saw, and take what it may spend and must refuse.
-- KEYS: retries, refused, exchange.  ARGV: sequence, earned, wanted, most, refused at most, ms that an exchange is
-- remembered, then fingerprint and ms of each refused prompt.
-- Returns the retries granted, as a string, then fingerprint and ms left of all that are refused.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)

for i = 7, #ARGV, 2 do
  redis.call('ZADD', KEYS[2], 'GT', now + tonumber(ARGV[i + 1]), ARGV[i])
end
redis.call('ZREMRANGEBYSCORE', KEYS[2], '-inf', now)
redis.call('ZREMRANGEBYRANK', KEYS[2], 0, -tonumber(ARGV[5]) - 1)

local last = redis.call('HMGET', KEYS[3], 'sequence', 'granted')
local granted = last[2]
if tonumber(ARGV[1]) > tonumber(last[1] or 0) then
  local left = math.min(tonumber(ARGV[4]), tonumber(redis.call('GET', KEYS[1]) or ARGV[4]) + tonumber(ARGV[2]))
  local given = math.max(0, math.min(math.floor(left), tonumber(ARGV[3])))
  redis.call('SET', KEYS[1], tostring(left - given))
  granted = tostring(given)
  redis.call('HSET', KEYS[3], 'sequence', ARGV[1], 'granted', granted)
end
redis.call('PEXPIRE', KEYS[3], ARGV[6])

local reply = {granted}
local refused = redis.call('ZRANGE', KEYS[2], 0, -1, 'WITHSCORES')
for i = 1, #refused, 2 do
  reply[#reply + 1] = refused[i]
  reply[#reply + 1] = tonumber(refused[i + 1]) - now
end
return reply
