-- Apply one index update of one incarnation, fenced by its sequence, and tell the stream.
-- KEYS: entry, updates, holders, ended.
-- ARGV: holder, sequence, reset (0/1), stored hashes joined, evicted hashes joined, ttl in ms, cap of updates.
-- Returns 1 if the entry now contains the update, 0 if the caller must send everything (or has been dropped).
local HASH = 16
local entry, sequence, reset = KEYS[1], tonumber(ARGV[2]), ARGV[3] == '1'

if redis.call('EXISTS', KEYS[4]) == 1 then
  return 0
end
local held = redis.call('HMGET', entry, 'sequence', 'digest')
local current = tonumber(held[1] or nil)
if current and sequence <= current then
  return 1
end
if not reset and sequence ~= (current or -1) + 1 then
  return 0
end

local digest = { 0, 0, 0, 0 }
if reset then
  redis.call('DEL', entry)
else
  for word = 1, 4 do
    digest[word] = tonumber(string.sub(held[2], word * 8 - 7, word * 8), 16)
  end
end

-- The digest follows what the entry really gained and lost, so it can unmask a copy that went another way.
local function fold(hash)
  local a, b, c, d = struct.unpack('>I4I4I4I4', hash)
  digest[1] = bit.bxor(digest[1], a)
  digest[2] = bit.bxor(digest[2], b)
  digest[3] = bit.bxor(digest[3], c)
  digest[4] = bit.bxor(digest[4], d)
end
for at = 1, #ARGV[5], HASH do
  local hash = string.sub(ARGV[5], at, at + HASH - 1)
  if redis.call('HDEL', entry, hash) == 1 then
    fold(hash)
  end
end
for at = 1, #ARGV[4], HASH do
  local hash = string.sub(ARGV[4], at, at + HASH - 1)
  if redis.call('HSET', entry, hash, '') == 1 then
    fold(hash)
  end
end

local hex = ''
for word = 1, 4 do
  hex = hex .. bit.tohex(digest[word])
end
redis.call('HSET', entry, 'sequence', ARGV[2], 'digest', hex)
redis.call('PEXPIRE', entry, ARGV[6])
redis.call('SADD', KEYS[3], ARGV[1])
if reset then
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[7], '*', 'kind', 'reset', 'holder', ARGV[1], 'sequence', ARGV[2])
else
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[7], '*', 'kind', 'delta', 'holder', ARGV[1], 'sequence', ARGV[2],
    'stored', ARGV[4], 'evicted', ARGV[5])
end
return 1
