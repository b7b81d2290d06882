"""The doctor: rows in, findings out.

`statistics` keeps a few O(1) numbers per series; `case` knows which logged name feeds which of them; `rules/` are small
typed functions over them; `rulebook` holds their numbers and words, which users override; `monitor` runs them, row by
row; `actions` turns findings into requests to the trainer; `notify` tells people. But for `notify`: no files, no
threads, no clock; time comes in with the rows and with `Monitor.tick`.
"""
