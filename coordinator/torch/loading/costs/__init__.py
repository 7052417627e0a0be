"""What samples cost: numbers from arrays, columns or functions, and a dealer that divides global batches by them."""
