#!lua
-- Whether this server takes writes of this user. Writes nothing: a server that
-- takes none does not run a script that may write.
--
-- KEYS    meta, log, index
-- ARGV    -
-- answer  {now in us}
-- errors  NOPERM, naming a command that this user may not use

for _, command in ipairs({
  { 'DEL', KEYS[1] }, { 'EXISTS', KEYS[1] },
  { 'HMGET', KEYS[1], 'r' }, { 'HSET', KEYS[1], 'r', '1' }, { 'HDEL', KEYS[1], 'r' },
  { 'PEXPIRE', KEYS[1], '1' }, { 'PEXPIREAT', KEYS[1], '1' }, { 'PTTL', KEYS[1] },
  { 'XADD', KEYS[2], '*', 'a', 'b' }, { 'XDEL', KEYS[2], '0-1' }, { 'XLEN', KEYS[2] },
  { 'XRANGE', KEYS[2], '-', '+' }, { 'XREVRANGE', KEYS[2], '+', '-' },
  { 'XREAD', 'STREAMS', KEYS[2], '0' },
  { 'ZADD', KEYS[3], '1', 'a' }, { 'ZREM', KEYS[3], 'a' }, { 'ZCARD', KEYS[3] },
  { 'ZCOUNT', KEYS[3], '0', '1' }, { 'ZSCORE', KEYS[3], 'a' }, { 'ZRANK', KEYS[3], 'a' },
  { 'ZRANGEBYSCORE', KEYS[3], '0', '1' }, { 'ZREVRANGE', KEYS[3], '0', '0' },
  { 'ZSCAN', KEYS[3], '0' },
}) do
  if not redis.acl_check_cmd(unpack(command)) then
    local key = command[2] == 'STREAMS' and command[3] or command[2]
    return redis.error_reply('NOPERM the user may not use ' .. command[1] .. ' on ' .. key)
  end
end
local now_us = clock()
return { text(now_us) }
