"""Plain data in, text for people out. No run files, no clock."""
