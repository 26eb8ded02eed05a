"""Small defects, planted one at a time into the code that secrecy hangs on: the tests that run it must notice each.

`operators` says what can go wrong in a source; `planted` plants it, in memory only; `forked` runs a function in a child
with limits; `selection` finds the tests that run a line; `campaign` plants, runs and counts; `excused` are the defects
that nothing can or need notice, each with its reason.
"""
