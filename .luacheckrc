std = 'lua54'
max_line_length = 120
-- LuaCATS declarations: empty functions whose parameters are the documentation.
files['lua/kvlab/meta'] = { ignore = { '111', '112', '113', '211', '212', '241', '631' } }
-- Layout files run in the sandbox, where the kinds of layer are globals.
files['experiments/**/layout*.lua'] = { ignore = { '113' } }
files['tests/lua'] = { globals = { 'os' }, ignore = { '212/self', '111/Test.*', '112/Test.*', '113/Test.*' } }
