-- cost.lua: what the layout of a run costs, beside its quality: bytes and multiply-adds of one decode step.
local config = require 'kvlab.config'
local count = require 'kvlab.count'
local flops = require 'kvlab.flops'

local cost = {}

-- cost.of(settings) -> { bytes_per_token =, fixed_bytes =, read_bytes =, flops = } as numbers, nil without a layout;
-- or nil and why it cannot be said. Uses the settings layout, records, widths and context. `flops` is of the cheapest
-- order of computing one decode step; nil when a width is missing that only projections need.
function cost.of(settings)
  if settings.layout == nil then return nil end
  local ok, result = pcall(function()
    return count.layout(config.layout(settings.layout), { context = settings.context,
      records = config.records(settings.records), widths = settings.widths })
  end)
  if not ok then return nil, result end
  local out = { bytes_per_token = result.store.bytes_per_token:tonumber(),
    fixed_bytes = result.store.fixed_bytes:tonumber(), read_bytes = result.read.total_bytes:tonumber() }
  local known, orders = pcall(flops.layout, result)
  for _, order in ipairs(known and orders.orders or {}) do
    local total = orders.decode[order].total:tonumber()
    out.flops = math.min(out.flops or total, total)
  end
  return out
end

return cost
