"""The terminal view of a run or a foreign log that is being written. Read-only; stored data comes from `views`."""
