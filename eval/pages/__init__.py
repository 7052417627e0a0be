"""Pages for people to read: pictures of traces, forecasts and curves, and the report of a run."""
