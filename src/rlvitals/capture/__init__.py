"""Where data enters: the recorder a trainer talks to."""
