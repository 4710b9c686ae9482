std = 'lua54'
max_line_length = 120
-- LuaCATS declarations: empty functions whose parameters are the documentation.
files['lua/kvlab/meta'] = { ignore = { '111', '112', '113', '211', '212', '241', '631' } }
-- Layout files run in the sandbox, where the kinds of layer are globals.
files['experiments/**/layout*.lua'] = { ignore = { '113' } }
-- Tables of cases are read by columns.
files['tests'] = { max_line_length = 145 }
files['tests/lua'] = { max_line_length = 145, globals = { 'os' }, ignore = { '211', '212/self', '311', '432', '111/Test.*', '112/Test.*', '113/Test.*' } }
