#!lua flags=allow-oom
-- Keeps holds that have not lapsed.
--
-- KEYS    for each pool: held, notes
-- ARGV    ms to hold from now, then for each hold: its pool's number, holder
-- answer  {now in us, then for each hold: 1 if it is held, else 0}

local LEFT_MS = 60000 -- as in take
local ttl = tonumber(ARGV[1])
local now_us, now_ms = clock()
local answer = { text(now_us) }
for n = 2, #ARGV, 2 do
  local pool, holder = tonumber(ARGV[n]), ARGV[n + 1]
  local held = KEYS[pool * 2 - 1]
  local until_ms = redis.call('ZSCORE', held, holder)
  if until_ms and tonumber(until_ms) > now_ms then
    redis.call('ZADD', held, text(now_ms + ttl), holder)
    keep_key(held, ttl + LEFT_MS)
    keep_key(KEYS[pool * 2], ttl + LEFT_MS)
    answer[#answer + 1] = 1
  else
    answer[#answer + 1] = 0
  end
end
return answer
