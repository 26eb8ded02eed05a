"""Small defects, planted one at a time into the code that secrecy hangs on: the tests that run it must notice each.

`operators` says what can go wrong in a source; `planted` is a plugin of pytest that lets one module of a run have one
defect, and notes how long tests take; `selection` finds the tests that run a line; `campaign` plants, runs and counts.
Defects live in memory only: no file is changed.
"""
