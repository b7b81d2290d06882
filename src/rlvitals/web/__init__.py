"""The dashboard: a read-only server over a folder of runs, and its static pages. Facts come from `views`."""
