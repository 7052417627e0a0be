"""Put first on Python's path by ``paceline collect``; nothing here is to be imported."""
