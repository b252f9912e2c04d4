-- Put in front of every script, after its first line.

local FORMAT = 1            -- of records; keep equal to ENVELOPE_FORMAT in record.rs
local MAX_BODY = 1048576    -- bytes; keep equal to MAX_RECORD_BYTES in record.rs
local MAX_EXACT = '9007199254740991'    -- largest number that is counted with; 2^53 - 1
local MAX_TIME = '18446744073709551615' -- largest time that is carried

-- Microseconds, and whole milliseconds, of this server's clock.
local function clock()
  local t = redis.call('TIME')
  local us = tonumber(t[1]) * 1000000 + tonumber(t[2])
  return us, math.floor(us / 1000)
end

local function text(number)
  return string.format('%.0f', number)
end

-- Whether `s` is a number up to `most` in its only spelling.
local function is_number(s, most)
  return s and string.find(s, '^%d+$')
    and (s == '0' or string.byte(s) ~= 48)
    and (#s < #most or (#s == #most and s <= most))
end

-- What is stored under `key`: its kind (absent, corrupt, newer or whole), the
-- record's fields, and the same as it is told to the caller: {} for nothing,
-- {message} for another type, or {f, v, r, w, x, b}.
local function stored(key)
  local raw = redis.pcall('HMGET', key, 'f', 'v', 'r', 'w', 'x', 'b')
  if raw.err then
    return { kind = 'corrupt', told = { raw.err } }
  end
  local f, v, r, w, x, b = unpack(raw)
  if not (f or v or r or w or x or b) and redis.call('EXISTS', key) == 0 then
    return { kind = 'absent', told = {} }
  end
  local record = { kind = 'corrupt', v = v, r = r, x = x, told = raw }
  if is_number(f, '65535') then
    if tonumber(f) > FORMAT then
      record.kind = 'newer'
    elseif is_number(v, '65535') and is_number(r, MAX_EXACT) and is_number(w, MAX_EXACT)
      and (not x or is_number(x, MAX_TIME)) and b and #b <= MAX_BODY then
      record.kind = 'whole'
    end
  end
  return record
end

-- Whether `record` has this revision and has not expired.
local function holds(record, revision, now_ms)
  return record.kind == 'whole' and record.r == revision
    and (not record.x or tonumber(record.x) > now_ms)
end

-- Lets `key` live at least `ms` from now.
local function keep_key(key, ms)
  local left = redis.call('PTTL', key)
  if left >= -1 and left < ms then
    redis.call('PEXPIRE', key, text(ms))
  end
end
