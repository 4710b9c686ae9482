---@meta
local safetensors = {}

---@within kv.safetensors
--- Opens a file of named tensors; its data is mapped and read when asked for. Everything the header says is checked.
---
--- Source: the safetensors format (github.com/huggingface/safetensors).
---
--- Errors: whatever is wrong with the file, with its name and the place.
--- Example:
---   pcall(kv.safetensors.open, '/nowhere')  --> false
---@param path string
---@return SafeTensors file
function safetensors.open(path) end

--- Writes tensors to a file that replaces the old one only when it is complete.
---
--- A value is a Tensor (as F32 or I32) or {tensor, type}: F64 F32 F16 BF16 F8_E4M3 F8_E5M2 F8_E8M0 for float32; I64 I32 U8
--- BOOL F64 for int32.
---
--- Errors: integers that the type cannot hold, names that are not UTF-8, what the system says.
--- Example:
---   pcall(kv.safetensors.save, '/nowhere/x', {})  --> false
---@param path string
---@param tensors table<string, Tensor|table>
---@param metadata? table<string, string>
---@return nil nothing
function safetensors.save(path, tensors, metadata) end

local SafeTensors = {}

--- An open file of tensors: its header is checked, data is read when it is asked for.
---@within SafeTensors
--- The names of all tensors, in the order of their data.
--- Example:
---   path = os.tmpname()
---   kv.safetensors.save(path, { x = kv.arange(3) }, { made = 'here' })
---   file = kv.safetensors.open(path)
---   file:names()[1]  --> x
---@return string[] names
function SafeTensors:names() end

--- True when the file has a tensor of that name.
--- Example:
---   path = os.tmpname()
---   kv.safetensors.save(path, { x = kv.arange(3) }, { made = 'here' })
---   file = kv.safetensors.open(path)
---   file:has 'y'  --> false
---@param name string
---@return boolean yes
function SafeTensors:has(name) end

--- The type in the file ('BF16') and the shape.
--- Example:
---   path = os.tmpname()
---   kv.safetensors.save(path, { x = kv.arange(3) }, { made = 'here' })
---   file = kv.safetensors.open(path)
---   file:info 'x'  --> I32
---@param name string
---@return string dtype
---@return integer[] shape
function SafeTensors:info(name) end

--- Loads a tensor: floats as float32, integers and BOOL as int32.
---
--- Errors: no such name; an I64 that int32 cannot hold; a BOOL that is not 0 or 1; a file that was cut meanwhile.
--- Example:
---   path = os.tmpname()
---   kv.safetensors.save(path, { x = kv.arange(3) }, { made = 'here' })
---   file = kv.safetensors.open(path)
---   file:load 'x'  --> int32 {3} {0, 1, 2}
---@param name string
---@return Tensor t
function SafeTensors:load(name) end

--- How far a tensor is from the one in the file, in double precision: ||t - file|| / ||file|| (||t - file|| when the
---
--- file has only zeros) and the largest |t - file|. F64 is compared as it is.
---
--- Errors: shapes differ.
--- Example:
---   path = os.tmpname()
---   kv.safetensors.save(path, { x = kv.arange(3) }, { made = 'here' })
---   file = kv.safetensors.open(path)
---   file:compare('x', kv.arange(3))  --> 0.0
---@param name string
---@param t Tensor
---@return number relative
---@return number largest
function SafeTensors:compare(name, t) end

--- The texts under __metadata__.
--- Example:
---   path = os.tmpname()
---   kv.safetensors.save(path, { x = kv.arange(3) }, { made = 'here' })
---   file = kv.safetensors.open(path)
---   file:metadata().made  --> here
---@return table<string, string> metadata
function SafeTensors:metadata() end

--- Closes the file; loaded tensors stay. Using it afterwards is an error.
--- Example:
---   path = os.tmpname()
---   kv.safetensors.save(path, { x = kv.arange(3) }, { made = 'here' })
---   file = kv.safetensors.open(path)
---   file:close()  --> nil
---@return nil nothing
function SafeTensors:close() end
