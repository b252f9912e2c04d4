#!lua flags=no-writes
-- Reads records, as many of the first ones as fit.
--
-- KEYS    records
-- ARGV    bytes of bodies after which no further record is read
-- answer  {now in us, then for each record that was read: what is stored}

local now_us = clock()
local answer, bytes = { text(now_us) }, 0
for n, key in ipairs(KEYS) do
  local record = stored(key)
  answer[n + 1] = record.told
  bytes = bytes + #(record.told[6] or '')
  if bytes >= tonumber(ARGV[1]) then break end
end
return answer
