#!lua
-- Takes a place in a pool, if there is room for it and all who wait before it.
--
-- KEYS    held, queue, patience, notes, then the guarded record, if any
-- ARGV    holder, limit or '', ms to hold, ms to keep a place in the queue or
--         '', note, holders of the pool at most, then the guard's revision
-- answer  {now in us, 1, until in ms}              it holds
--         {now in us, 0, how many wait before it}  there is no room
--         {now in us, 2, what is stored}           the guard does not hold
--         {now in us, 3}                           the pool has too many holders
--
-- held     sorted set: holders by when they lapse, in ms
-- queue    sorted set: those who wait by when they came, in us
-- patience sorted set: those who wait by when they lose their place, in ms
-- notes    hash: what others read of holders

local HELD, QUEUE, PATIENCE, NOTES = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local holder, limit, ttl, patience = ARGV[1], ARGV[2], tonumber(ARGV[3]), ARGV[4]
local LEFT_MS = 60000 -- an idle pool is forgotten this long after its last holder
local ROUNDS = 1000   -- lapsed ones that are cleared, at most, by one call
local now_us, now_ms = clock()

if KEYS[5] then
  local record = stored(KEYS[5])
  if not holds(record, ARGV[7], now_ms) then
    return { text(now_us), 2, record.told }
  end
end

-- Those who lapsed make room.
local lapsed = redis.call('ZRANGEBYSCORE', HELD, '-inf', text(now_ms), 'LIMIT', 0, ROUNDS)
for _, name in ipairs(lapsed) do
  redis.call('ZREM', HELD, name)
  redis.call('HDEL', NOTES, name)
end
lapsed = redis.call('ZRANGEBYSCORE', PATIENCE, '-inf', text(now_ms), 'LIMIT', 0, ROUNDS)
for _, name in ipairs(lapsed) do
  redis.call('ZREM', PATIENCE, name)
  redis.call('ZREM', QUEUE, name)
end

local holds_already = redis.call('ZSCORE', HELD, holder)
holds_already = holds_already and tonumber(holds_already) > now_ms
local rank = redis.call('ZRANK', QUEUE, holder)
local waiting = redis.call('ZCARD', QUEUE)
local crowded = not holds_already and not rank
  and redis.call('ZCARD', HELD) + waiting >= tonumber(ARGV[6])
local ahead = rank or waiting
local live = redis.call('ZCOUNT', HELD, '(' .. text(now_ms), '+inf')
if holds_already or limit == '' or live + ahead < tonumber(limit) then
  if crowded then return { text(now_us), 3 } end
  redis.call('ZADD', HELD, text(now_ms + ttl), holder)
  if rank then
    redis.call('ZREM', QUEUE, holder)
    redis.call('ZREM', PATIENCE, holder)
  end
  if ARGV[5] ~= '' then
    redis.call('HSET', NOTES, holder, ARGV[5])
  else
    redis.call('HDEL', NOTES, holder)
  end
  keep_key(HELD, ttl + LEFT_MS)
  keep_key(NOTES, ttl + LEFT_MS)
  return { text(now_us), 1, text(now_ms + ttl) }
end

if patience ~= '' then
  if crowded then return { text(now_us), 3 } end
  if not rank then
    local last = redis.call('ZREVRANGE', QUEUE, 0, 0, 'WITHSCORES')
    local came = now_us
    if last[2] then came = math.max(came, tonumber(last[2]) + 1) end
    redis.call('ZADD', QUEUE, text(came), holder)
  end
  redis.call('ZADD', PATIENCE, text(now_ms + tonumber(patience)), holder)
  keep_key(QUEUE, tonumber(patience) + LEFT_MS)
  keep_key(PATIENCE, tonumber(patience) + LEFT_MS)
elseif rank then
  redis.call('ZREM', QUEUE, holder)
  redis.call('ZREM', PATIENCE, holder)
end
return { text(now_us), 0, ahead }
