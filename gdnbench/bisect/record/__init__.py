"""Which captured call is the first bad one, and whether its error starts there or arrives with its state.

`links` finds which call left the state that another gets, `carried` runs calls one after another on a
kernel's own states, `drift` says where the error of that is too large, `find` asks for it all, `text` says
what came of it.
"""
