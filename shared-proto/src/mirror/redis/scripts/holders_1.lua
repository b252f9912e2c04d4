#!lua flags=no-writes
-- Reads some of a pool's holders. One that holds all the while is told at
-- least once before the cursor comes back to 0, perhaps more often.
--
-- KEYS    held, notes
-- ARGV    cursor, 0 to begin; how many at a time, roughly
-- answer  {now in us, next cursor, then for each: holder, until in ms, note}

local now_us, now_ms = clock()
local page = redis.call('ZSCAN', KEYS[1], ARGV[1], 'COUNT', ARGV[2])
local answer = { text(now_us), page[1] }
local found = page[2]
for n = 1, #found, 2 do
  if tonumber(found[n + 1]) > now_ms then
    local note = redis.call('HMGET', KEYS[2], found[n])[1] or ''
    local at = #answer
    answer[at + 1], answer[at + 2], answer[at + 3] = found[n], text(tonumber(found[n + 1])), note
  end
end
return answer
