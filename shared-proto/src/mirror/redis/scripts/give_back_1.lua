#!lua flags=allow-oom
-- Gives holds and places in the queue back.
--
-- KEYS    for each pool: held, queue, patience, notes
-- ARGV    for each hold: its pool's number, holder
-- answer  {now in us}

local now_us = clock()
for n = 1, #ARGV, 2 do
  local at, holder = (tonumber(ARGV[n]) - 1) * 4, ARGV[n + 1]
  redis.call('ZREM', KEYS[at + 1], holder)
  redis.call('ZREM', KEYS[at + 2], holder)
  redis.call('ZREM', KEYS[at + 3], holder)
  redis.call('HDEL', KEYS[at + 4], holder)
end
return { text(now_us) }
