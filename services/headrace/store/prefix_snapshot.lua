-- One entry as it is now: sequence and its hashes joined (one value is read much faster than many), or nil.
-- KEYS: entry.
local HASH = 16
local sequence = redis.call('HGET', KEYS[1], 'sequence')
if not sequence then
  return nil
end
local hashes = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if #field == HASH then
    hashes[#hashes + 1] = field
  end
end
return { sequence, table.concat(hashes) }
