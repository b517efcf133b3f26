-- Take or renew a worker's lease.
-- KEYS: lease, workers, events.  ARGV: worker, incarnation, order (0: none yet), info, ttl in ms, cap of events.
-- Returns the life's order as a string, or nil if a later life of this worker holds the lease.
local worker, incarnation, order = ARGV[1], ARGV[2], tonumber(ARGV[3])
local held = redis.call('HMGET', KEYS[1], 'incarnation', 'order', 'info')
local held_order = tonumber(held[2] or 0)

if order == 0 and held[1] == incarnation then
  order = held_order
elseif order == 0 then
  -- Redis's own clock orders the lives of one worker on whatever host they ran; a clock set back still counts up.
  local now = redis.call('TIME')
  order = math.max(tonumber(now[1]) * 1000000 + tonumber(now[2]), held_order + 1)
end
if held[1] and held[1] ~= incarnation and held_order > order then
  return nil
end

local written = string.format('%.0f', order)
redis.call('HSET', KEYS[1], 'incarnation', incarnation, 'order', written, 'info', ARGV[4])
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('SADD', KEYS[2], worker)
if held[1] ~= incarnation or held[3] ~= ARGV[4] then
  redis.call('XADD', KEYS[3], 'MAXLEN', '~', ARGV[6], '*', 'worker', worker)
end
return written
