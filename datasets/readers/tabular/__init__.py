"""Tables of any layout: what their columns are, in CSV and JSON, and tables whose columns are known."""
