"""The terminal view: a run or a foreign log while it is written. Read-only; stored data comes through `views`."""
