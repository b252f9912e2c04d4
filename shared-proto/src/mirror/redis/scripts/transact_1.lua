#!lua
-- Makes every change of a transaction, each with its entry in the log, or none.
--
-- KEYS    meta, log, index, then a record for each guard, then for each commit
-- ARGV    number of guards, number of commits, entries and bytes the log keeps,
--         then for each guard: its revision,
--         then for each commit six:
--           its name in index and log, or '' for a quiet one
--           what it expects: 'a' nothing, 'c' something corrupt, or a revision
--           body version
--           'p' to put, 'd' to delete
--           when it expires, in ms, or ''
--           body
-- answer  {now in us, 1, then for each commit: revision, position}  all are made
--         {now in us, 0, then for each guard and commit: what is stored}  none is
-- errors  FOREIGN: meta, log or index are not what this program makes of them;
--         nothing is changed
--
-- meta    hash: r the newest revision given, b bytes in the log
-- log     stream; an entry has p the id of the entry before it, k the name,
--         r the revision, n its weight in bytes, and either d when it was
--         deleted, in ms, or the fields of the record
-- index   sorted set: names of all logged records by when they expire
-- record  hash: f format, v body version, r revision, w written in ms,
--         x expires in ms, b body

local GRACE_MS = 60000  -- an expired record is still there this long
local ENTRY_BYTES = 200 -- what an entry weighs besides name and body
local ROUNDS = 64       -- entries trimmed, at most, by one call

local META, LOG, INDEX = KEYS[1], KEYS[2], KEYS[3]
local guards, commits = tonumber(ARGV[1]), tonumber(ARGV[2])
local max_entries, max_bytes = tonumber(ARGV[3]), tonumber(ARGV[4])
local now_us, now_ms = clock()

local function foreign(key, why)
  return redis.error_reply('FOREIGN the key ' .. key .. ' is not this program\'s: ' .. why)
end

local meta = redis.pcall('HMGET', META, 'r', 'b')
if meta.err then return foreign(META, meta.err) end
local head = redis.pcall('XREVRANGE', LOG, '+', '-', 'COUNT', 1)
if head.err then return foreign(LOG, head.err) end
local size = redis.pcall('ZCARD', INDEX)
if type(size) == 'table' then return foreign(INDEX, size.err) end
local latest, bytes = meta[1] or '0', meta[2] or '0'
if not (is_number(latest, MAX_EXACT) and is_number(bytes, MAX_EXACT)) then
  return foreign(META, 'no numbers')
end

-- Judge. The rule for commits is that of `Commit::decide`.
local function allowed(record, expected, version, change)
  if record.kind == 'absent' then return expected == 'a' and change == 'p' end
  if record.kind == 'corrupt' then return expected == 'c' end
  return record.kind == 'whole' and expected == record.r
    and tonumber(record.v) <= tonumber(version)
end

local told, fits = {}, true
for n = 1, guards do
  local record = stored(KEYS[3 + n])
  told[n] = record.told
  fits = fits and holds(record, ARGV[4 + n], now_ms)
end
local revision = math.max(now_us, tonumber(latest) + 1)
local before = head[1] and head[1][1] or '0-0'
if not head[1] then
  -- A log that somebody emptied still knows its last id.
  local info = redis.pcall('XINFO', 'STREAM', LOG)
  for n = 1, info.err and 0 or #info, 2 do
    if info[n] == 'last-generated-id' then before = info[n + 1] end
  end
end
if before ~= '0-0' then
  local major = string.match(before, '^(%d+)-')
  if not is_number(major, MAX_EXACT) then return foreign(LOG, 'its ids are too high') end
  revision = math.max(revision, tonumber(major) + 1)
end
local changes = {}
for n = 1, commits do
  local at = 4 + guards + (n - 1) * 6
  local c = {
    key = KEYS[3 + guards + n], name = ARGV[at + 1], version = ARGV[at + 3],
    change = ARGV[at + 4], expires = ARGV[at + 5], body = ARGV[at + 6],
  }
  local record = stored(c.key)
  told[guards + n] = record.told
  fits = fits and allowed(record, ARGV[at + 2], c.version, c.change)
  if record.kind == 'whole' then
    revision = math.max(revision, tonumber(record.r) + 1)
  end
  changes[n] = c
end
if not fits then
  local answer = { text(now_us), 0 }
  for n = 1, #told do answer[n + 2] = told[n] end
  return answer
end
if revision + commits > tonumber(MAX_EXACT) then return foreign(META, 'its revisions are used up') end
if commits == 0 then return { text(now_us), 1 } end

-- Write. The log comes first: adding to it is all that could be refused.
local answer = { text(now_us), 1 }
local added, weights = 0, 0
for n = 1, commits do
  local c = changes[n]
  c.revision = text(revision)
  revision = revision + 1
  if c.name ~= '' then
    local weight = ENTRY_BYTES + #c.name + #c.body
    local entry = { 'p', before, 'k', c.name, 'r', c.revision, 'n', text(weight) }
    if c.change == 'd' then
      entry[9], entry[10] = 'd', text(now_ms)
    else
      local fields = { 'f', text(FORMAT), 'v', c.version, 'w', text(now_ms), 'b', c.body }
      for i = 1, 8 do entry[8 + i] = fields[i] end
      if c.expires ~= '' then entry[17], entry[18] = 'x', c.expires end
    end
    before = redis.call('XADD', LOG, c.revision .. '-0', unpack(entry))
    bytes, weights, added = bytes + weight, weights + weight, added + 1
  end
  answer[1 + n * 2], answer[2 + n * 2] = c.revision, before
end
for n = 1, commits do
  local c = changes[n]
  redis.call('DEL', c.key)
  if c.change == 'p' then
    redis.call('HSET', c.key, 'f', text(FORMAT), 'v', c.version, 'r', c.revision,
      'w', text(now_ms), 'b', c.body)
    if c.expires ~= '' then
      redis.call('HSET', c.key, 'x', c.expires)
      if #c.expires < 16 then
        redis.call('PEXPIREAT', c.key, text(tonumber(c.expires) + GRACE_MS))
      end
    end
  end
  if c.name ~= '' and c.change == 'p' then
    redis.call('ZADD', INDEX, c.expires == '' and '+inf' or c.expires, c.name)
  elseif c.name ~= '' then
    redis.call('ZREM', INDEX, c.name)
  end
end

-- Trim, oldest first.
if added > 0 then
  local kept = redis.call('XLEN', LOG)
  for _ = 1, ROUNDS do
    if kept <= max_entries and (bytes <= max_bytes or kept <= 1) then break end
    local oldest = redis.call('XRANGE', LOG, '-', '+', 'COUNT', 1)[1]
    local fields = oldest[2]
    for i = 1, #fields, 2 do
      if fields[i] == 'n' and is_number(fields[i + 1], MAX_EXACT) then
        bytes = math.max(0, bytes - tonumber(fields[i + 1]))
      end
    end
    redis.call('XDEL', LOG, oldest[1])
    kept = kept - 1
  end
  -- Others may have trimmed too: then the count begins anew.
  if kept <= added then bytes = math.min(bytes, weights) end
end
redis.call('HSET', META, 'r', text(revision - 1), 'b', text(tonumber(bytes)))

-- Forget names of records that have expired, a few at a time.
local root = string.sub(INDEX, 1, -(#'index' + 1))
for _, name in ipairs(redis.call('ZRANGEBYSCORE', INDEX, '-inf', text(now_ms - GRACE_MS),
  'LIMIT', 0, 4)) do
  if redis.call('EXISTS', root .. name) == 0 then
    redis.call('ZREM', INDEX, name)
  else
    -- Someone made it last: look again later.
    redis.call('ZADD', INDEX, text(now_ms), name)
  end
end
return answer
