#!lua flags=allow-oom
-- Takes old entries from the log, oldest first, the newest one excepted: it
-- shows where the log stands.
--
-- KEYS    meta, log, then the guarded record, if any
-- ARGV    how old in ms, entries taken at most, then the guard's revision
-- answer  {now in us, 1, how many were taken}
--         {now in us, 0, what is stored}  the guard does not hold
-- errors  FOREIGN: meta or log are not what this program makes of them;
--         nothing is changed

local META, LOG = KEYS[1], KEYS[2]
local age_ms, most = tonumber(ARGV[1]), ARGV[2]
local now_us, now_ms = clock()

local function foreign(key, why)
  return redis.error_reply('FOREIGN the key ' .. key .. ' is not this program\'s: ' .. why)
end

if KEYS[3] then
  local record = stored(KEYS[3])
  if not holds(record, ARGV[3], now_ms) then
    return { text(now_us), 0, record.told }
  end
end
local meta = redis.pcall('HMGET', META, 'b')
if meta.err then return foreign(META, meta.err) end
local bytes = meta[1] or '0'
if not is_number(bytes, MAX_EXACT) then return foreign(META, 'no numbers') end
local newest = redis.pcall('XREVRANGE', LOG, '+', '-', 'COUNT', 1)
if newest.err then return foreign(LOG, newest.err) end
if not newest[1] or now_ms <= age_ms then return { text(now_us), 1, '0' } end

-- An entry's id is a time in us, or a little above it.
local before = text(now_us - age_ms * 1000)
local taken = 0
for _, entry in ipairs(redis.call('XRANGE', LOG, '-', before, 'COUNT', most)) do
  if entry[1] == newest[1][1] then break end
  local fields = entry[2]
  for i = 1, #fields, 2 do
    if fields[i] == 'n' and is_number(fields[i + 1], MAX_EXACT) then
      bytes = math.max(0, bytes - tonumber(fields[i + 1]))
    end
  end
  redis.call('XDEL', LOG, entry[1])
  taken = taken + 1
end
if taken > 0 then redis.call('HSET', META, 'b', text(tonumber(bytes))) end
return { text(now_us), 1, text(taken) }
