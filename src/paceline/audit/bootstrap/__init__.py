"""The folder that an audit puts first on the path of a script's processes."""
