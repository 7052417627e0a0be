"""What people look at: pictures of traces, forecasts and curves, and the report of a run."""
