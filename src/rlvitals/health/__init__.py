"""The doctor: rows in, findings out.

`statistics` keeps a few O(1) numbers per series. `case` maps logged names to series. `rules/` are small typed functions
over the series. `rulebook` holds their numbers and texts, which users can override. `monitor` runs the rules on each
row. `actions` turns findings into requests to the trainer. `notify` sends notifications. Apart from `notify`, a monitor
starts no threads, reads no clock and writes no files: time comes with the rows and with `Monitor.tick`.
"""
